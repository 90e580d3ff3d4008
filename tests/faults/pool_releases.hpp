// Releases and uses of leases, and the end of a pool.
#pragma once

#include "pool_stage.hpp"

namespace escrow::test {

using statement = std::map<std::string, std::string>;

/// What the header of a lease says of a release.
inline statement unrecorded() {
  std::string const text = "the lease is empty then and its record deferred";
  statement all;
  for (char const* const part :
       {"cudaEventRecord", "cudaEventCreateWithFlags", "cudaStreamGetCaptureInfo",
        "cudaStreamGetId", "cudaGetDevice", "cudaSetDevice", "operator new"}) {
    all[part] = text;
  }
  return all;
}

/// And of the end of a lease.
inline statement told() {
  return {{"*", "errors at the end of a lease go to the deleter's on_error"}};
}

inline void add_eager_releases(operations_in<pool_stage>& all) {
  auto const release = runs({"lease::release"});
  auto const now = [](pool_stage& in) { in.held->release(); };
  auto const ending = [](pool_stage& in) { in.held.reset(); };
  auto const busy = [](pool_stage& in) {
    in.make_pool(1);
    claim_on(in, in.one);
    in.keep_busy(*in.held, in.one);
  };
  auto const with_others = [](pool_stage& in) {
    in.make_pool(1);
    claim_on(in, in.one);
    in.held->record_stream(in.other);
    in.held->record_stream(in.third);
    in.keep_busy(*in.held, in.third);
  };
  all.add("release", release, busy, now).stated = unrecorded();
  all.add(
         "release on another stream", release,
         [](auto& in) {
           in.make_pool(1);
           claim_on(in, in.one);
           in.keep_busy(*in.held, in.other);
         },
         [](auto& in) { in.held->release(in.other.get()); })
      .stated = unrecorded();
  all.add("release with other streams", release, with_others, now).stated = unrecorded();
  all.add("lease, ended", runs({"lease::~lease"}), with_others, ending).stated = told();
  all.add(
         "lease, assigned to", runs({"lease::~lease"}),
         [](auto& in) {
           in.make_pool(2);
           claim_on(in, in.one);
           in.keep_busy(*in.held, in.one);
           in.kept.emplace(in.pool->claim(in.other));
         },
         [](auto& in) {
           *in.held = std::move(*in.kept);
           in.kept.reset();
           in.claimed_on.reset();
         })
      .stated = told();
  all.add(
         "legacy lease, ended while a blocking stream captures", runs({"lease::~lease"}),
         [](auto& in) {
           in.make_pool(1);
           claim_on(in, cudaStreamLegacy);
           in.keep_busy(*in.held, cudaStreamLegacy);
           in.begin_capture(in.blocking);
         },
         ending)
      .stated = told();
}

/// The slot is used by another device, too, which goes on if the pool's is lost.
inline void add_releases_beside_another_device(operations_in<pool_stage>& all) {
  auto const busy = [](pool_stage& in) {
    in.make_pool(1);
    claim_on(in, in.one);
    in.keep_busy_elsewhere();
    in.claimed_on.reset();
  };
  all.add("release, used on another device", runs({"lease::release"}), busy,
          [](auto& in) { in.held->release(); })
      .stated = unrecorded();
  all.add("lease, ended, used on another device", runs({"lease::~lease"}), busy,
          [](auto& in) { in.held.reset(); })
      .stated = told();
  all.add("also used on another device", runs({"lease::record_stream"}), busy,
          [](auto& in) { in.held->record_stream(in.elsewhere); });
  all.add(
         "poll, a slot in use on another device", runs({"deleter::poll"}),
         [=](auto& in) {
           busy(in);
           in.held.reset();
           in.pool.reset();
         },
         [](auto& in) { in.worker->poll(); })
      .served_otherwise = {{"*", "what could not be reclaimed is at the next poll"}};
}

inline void add_captured_releases(operations_in<pool_stage>& all) {
  auto const release = runs({"lease::release"});
  auto const now = [](pool_stage& in) { in.held->release(); };
  auto const claimed = [](pool_stage& in) {
    in.make_pool(1);
    in.begin_capture(in.one);
    claim_on(in, in.one);
  };
  all.add(
      "release in a capture", release,
      [=](auto& in) {
        claimed(in);
        order(in.one, in.other);
        in.held->record_stream(in.other);
      },
      now);
  all.add("lease, ended in a capture", runs({"lease::~lease"}), claimed,
          [](auto& in) { in.held.reset(); });
  all.add(
         "release after the capture", release,
         [=](auto& in) {
           claimed(in);
           must(in.captured->end());
           in.keep_busy(*in.held, in.one);
         },
         now)
      .stated = unrecorded();
  all.add(
         "release after the graph", release,
         [=](auto& in) {
           claimed(in);
           must(in.captured->end());
           in.captured.reset();
           in.worker->poll();
           in.keep_busy(*in.held, in.one);
         },
         now)
      .stated = unrecorded();
  all.add(
      "release in a foreign capture", release,
      [](auto& in) {
        in.make_pool(1);
        claim_on(in, in.one);
        in.begin_capture(in.one);
      },
      now);
}

inline void add_uses(operations_in<pool_stage>& all) {
  auto const claimed = [](pool_stage& in) {
    in.make_pool(1);
    claim_on(in, in.one);
  };
  all.add("also used on", runs({"lease::record_stream"}), claimed,
          [](auto& in) { in.held->record_stream(in.other); });
  all.add(
      "also used on, in a capture", runs({"lease::record_stream"}),
      [](auto& in) {
        in.make_pool(1);
        in.begin_capture(in.one);
        claim_on(in, in.one);
        order(in.one, in.other);
        order(in.other, in.one);
      },
      [](auto& in) { in.held->record_stream(in.other); });
  all.add("about to be used on", runs({"lease::before_launch"}), claimed,
          [](auto& in) { in.held->before_launch(in.other); });
  all.add("shared with a node", runs({"lease::share_with_node"}), claimed,
          [](auto& in) { in.share.emplace(in.held->share_with_node()); });
  all.add(
      "share, ended", runs({}),
      [=](auto& in) {
        claimed(in);
        in.share.emplace(in.held->share_with_node());
      },
      [](auto& in) { in.share.reset(); });
}

inline void add_pools(operations_in<pool_stage>& all) {
  auto const one_out_one_busy = [](pool_stage& in) {
    in.make_pool();
    in.kept.emplace(in.pool->claim(in.one));
    block_lease held = in.pool->claim(in.other);
    in.keep_busy(held, in.other);
  };
  all.add(
      "pool, made", runs({"resource_pool::resource_pool"}), [](auto&) {},
      [](auto& in) { in.make_pool(); });
  all.add("pool, closed", runs({"resource_pool::close_for"}), one_out_one_busy, [](auto& in) {
    in.is_closed = true;
    EXPECT_EQ(in.pool->close_for(std::chrono::nanoseconds{0}).size(), 1U);
  });
  all.add("pool, ended", runs({"resource_pool::close_for"}), one_out_one_busy,
          [](auto& in) { in.pool.reset(); });
  all.add(
         "slot, returned from a graph", runs({"deleter::poll"}),
         [](auto& in) {
           in.recycles_when_seen = false;
           in.make_pool(1);
           in.begin_capture(in.one);
           library_work(*in.pool, in.one, 1, in.mismatches);
           must(in.captured->end());
           in.captured.reset();
         },
         [](auto& in) { in.worker->poll(); })
      .served_otherwise = {{"*", "what could not be reclaimed is at the next poll"}};
}

}  // namespace escrow::test
