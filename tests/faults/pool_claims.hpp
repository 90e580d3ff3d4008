// Claims, in each way that a pool can choose a slot.
#pragma once

#include "pool_stage.hpp"

namespace escrow::test {

inline void add_eager_claims(operations_in<pool_stage>& all) {
  auto const claim = runs({"resource_pool::claim"});
  auto const on_one = [](pool_stage& in) { claim_on(in, in.one); };
  auto const on_other = [](pool_stage& in) { claim_on(in, in.other); };
  all.add(
      "claim, a new slot", claim, [](auto& in) { in.make_pool(); }, on_one);
  all.add(
      "claim, the stream's own", claim,
      [](auto& in) {
        in.make_pool();
        block_lease held = in.pool->claim(in.one);
        in.keep_busy(held, in.one);
      },
      on_one);
  all.add(
      "claim, the stream's own, that others used", claim,
      [](auto& in) {
        in.make_pool(1);
        block_lease held = in.pool->claim(in.one);
        held.record_stream(in.other);
        held.record_stream(in.third);
        in.keep_busy(held, in.other);
      },
      on_one);
  all.add(
         "claim, one that is done", claim,
         [](auto& in) {
           in.make_pool();
           in.pool->claim(in.one).release();
           sync(in.one);
         },
         on_other)
      .served_otherwise = {{"cudaEventQuery", "a slot that is not known to be done is waited for"}};
  all.add(
      "claim, a busy one", claim,
      [](auto& in) {
        in.make_pool(1);
        block_lease held = in.pool->claim(in.one);
        held.record_stream(in.third);
        in.keep_busy(held, in.one);
      },
      on_other);
  all.add(
      "claim, recycled", claim,
      [](auto& in) {
        pool_options chosen;
        chosen.slots_max = in.slots = 1;
        chosen.deleter = in.worker.get();
        in.pool.emplace(
            chosen, [&in] { return block{in.counts}; },
            [](block& used, stream_ref stream) {
              escrow::check(launch_fill(stream.get(), used.data(), block::length, 7),
                            "cudaLaunchKernel");
            });
        in.pool->claim(in.one).release();
      },
      on_one);
}

inline void add_captured_claims(operations_in<pool_stage>& all) {
  auto const claim = runs({"resource_pool::claim"});
  auto const on_one = [](pool_stage& in) { claim_on(in, in.one); };
  all.add(
      "claim, a new slot, in a capture", claim,
      [](auto& in) {
        in.make_pool();
        in.begin_capture(in.one);
      },
      on_one);
  all.add(
      "claim, a done slot, in a capture", claim,
      [](auto& in) {
        in.make_pool(1);
        in.pool->claim(in.other).release();
        sync(in.other);
        in.begin_capture(in.one);
      },
      on_one);
  all.add(
      "claim, a released slot of the capture", claim,
      [](auto& in) {
        in.make_pool(1);
        in.begin_capture(in.one);
        library_work(*in.pool, in.one, 1, in.mismatches);
      },
      on_one);
  all.add(
      "claim, with an edge", claim,
      [](auto& in) {
        in.make_pool(1);
        in.begin_capture(in.one);
        order(in.one, in.other);
        library_work(*in.pool, in.other, 1, in.mismatches);
        order(in.other, in.third);
      },
      on_one);
}

inline void add_tried_claims(operations_in<pool_stage>& all) {
  all.add(
      "try claim, a new slot", runs({"resource_pool::try_claim"}),
      [](auto& in) { in.make_pool(1); },
      [](auto& in) {
        if (auto found = in.pool->try_claim(in.one)) in.held.emplace(std::move(*found));
      });
  all.add(
      "try claim for a while, in vain", runs({"resource_pool::try_claim_for"}),
      [](auto& in) {
        in.make_pool(1);
        in.kept.emplace(in.pool->claim(in.one));
      },
      [](auto& in) {
        auto found = in.pool->try_claim_for(in.other, std::chrono::nanoseconds{1});
        if (found) in.held.emplace(std::move(*found));
      });
}

inline void add_scratch(operations_in<pool_stage>& all) {
  auto const make = [](pool_stage& in) {
    pool_options chosen;
    chosen.slots_max = 2;
    chosen.deleter = in.worker.get();
    in.scratch.emplace(chosen);
  };
  auto const claim = [](pool_stage& in) { in.memory.emplace(in.scratch->claim(in.one, 300)); };
  all.add(
      "scratch, made", runs({"scratch_pool::scratch_pool"}), [](auto&) {}, make);
  all.add("scratch, claim", runs({"scratch_pool::claim"}), make, claim);
  all.add(
      "scratch, claim in a capture", runs({"scratch_pool::claim"}),
      [=](auto& in) {
        make(in);
        in.begin_capture(in.one);
      },
      claim);
  auto const with_one_free = [=](pool_stage& in) {
    make(in);
    claim(in);
    static_cast<void>(in.scratch->claim(in.one, 300));
  };
  all.add("scratch, close", runs({"scratch_pool::close_for"}), with_one_free, [](auto& in) {
    EXPECT_EQ(in.scratch->close_for(std::chrono::nanoseconds{0}).size(), 1U);
  });
  all.add("scratch, ended", runs({"scratch_pool::~scratch_pool"}), with_one_free,
          [](auto& in) { in.scratch.reset(); });
  all.add(
         "scratch, reclaimed", runs({"deleter::poll"}),
         [=](auto& in) {
           with_one_free(in);
           must(cudaStreamSynchronize(in.one));
           in.scratch.reset();
         },
         [](auto& in) { in.worker->poll(); })
      .served_otherwise = {{"*", "what could not be reclaimed is at the next poll"}};
  all.add(
      "device block, made", runs({"device_block::device_block"}), [](auto&) {},
      [](auto& in) { in.single.emplace(std::size_t{512}); });
  all.add(
      "device block, ended", runs({"device_block::~device_block"}),
      [](auto& in) { in.single.emplace(std::size_t{512}); }, [](auto& in) { in.single.reset(); });
}

}  // namespace escrow::test
