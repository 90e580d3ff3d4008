// Every call of every operation of pools fails once: claim, use, release, close, scratch memory.
#include "every_call.hpp"
#include "pool_stage.hpp"

namespace escrow::test {
namespace {

step const claim_on_other = claim_on(&pool_stage::other);
step const end_capture = [](auto& in) { must(in.captured->end()); };
/// A slot that was released while it is in use.
step busy_and_free(std::vector<owned_stream pool_stage::*> recorded,
                   owned_stream pool_stage::*stream) {
  return [=](auto& in) {
    block_lease used = in.pool->claim(in.one);
    for (auto const each : recorded) used.record_stream(in.*each);
    in.keep_busy(used, in.*stream);
  };
}
/// One that is not in use.
step const done_and_free = [](auto& in) {
  in.pool->claim(in.one).release();
  sync(in.one);
};
step ordered(owned_stream pool_stage::*before, owned_stream pool_stage::*after) {
  return [=](auto& in) { order(in.*before, in.*after); };
}
step recorded(owned_stream pool_stage::*stream) {
  return [=](auto& in) { in.held->record_stream(in.*stream); };
}

auto const one = &pool_stage::one;
auto const other = &pool_stage::other;
auto const third = &pool_stage::third;

void add_claims(rows& add) {
  auto const claims = runs("resource_pool::claim");
  add("claim, a new slot", claims, {pool_of(2)}, claim);
  add("claim, the stream's own", claims, {pool_of(2), busy_and_free({}, one)}, claim);
  add("claim, the stream's own, that others used", claims,
      {pool_of(1), busy_and_free({other, third}, other)}, claim);
  add("claim, one that is done", claims, {pool_of(2), done_and_free}, claim_on_other)
      .served_otherwise = {{"cudaEventQuery", "a slot that is not known to be done is waited for"}};
  add("claim, a busy one", claims, {pool_of(1), busy_and_free({third}, one)}, claim_on_other);
  step const recycling_pool = [](auto& in) {
    in.make_pool(1, [](block& used, stream_ref stream) {
      escrow::check(launch_fill(stream.get(), used.data(), block::length, 7), "cudaLaunchKernel");
    });
    in.pool->claim(in.one).release();
  };
  add("claim, recycled", claims, {recycling_pool}, claim);
  add("claim, a new slot, in a capture", claims, {pool_of(2), capturing}, claim);
  step const done_elsewhere = [](auto& in) {
    in.pool->claim(in.other).release();
    sync(in.other);
  };
  add("claim, a done slot, in a capture", claims, {pool_of(1), done_elsewhere, capturing}, claim);
  auto const work_on = [](owned_stream pool_stage::*stream) -> step {
    return [=](auto& in) { library_work(*in.pool, in.*stream, 1, in.mismatches); };
  };
  add("claim, a released slot of the capture", claims, {pool_of(1), capturing, work_on(one)},
      claim);
  add("claim, with an edge", claims,
      {pool_of(1), capturing, ordered(one, other), work_on(other), ordered(other, third)}, claim);
  step const shared_by_a_graph = [](auto& in) {
    in.group.emplace();
    in.make_pool(1);
    test::capture open{in.one, cudaStreamCaptureModeRelaxed};
    library_work(*in.pool, in.one, 1, in.mismatches);
    must(open.end());
    in.sharing = std::move(open.graph());
  };
  add("claim, a slot of another graph", claims, {shared_by_a_graph, capturing}, claim);
  add("try claim, a new slot", runs("resource_pool::try_claim"), {pool_of(1)}, [](auto& in) {
    if (auto found = in.pool->try_claim(in.one)) in.held.emplace(std::move(*found));
  });
  add("try claim for a while, in vain", runs("resource_pool::try_claim_for"),
      {pool_of(1), [](auto& in) { in.kept.emplace(in.pool->claim(in.one)); }}, [](auto& in) {
        auto found = in.pool->try_claim_for(in.other, std::chrono::nanoseconds{1});
        if (found) in.held.emplace(std::move(*found));
      });
}

step const make_scratch = [](auto& in) {
  in.scratch.emplace(pool_options{.slots_max = 2, .deleter = in.worker.get(), .group = in.group});
};
step const claim_scratch = [](auto& in) { in.memory.emplace(in.scratch->claim(in.one, 300)); };
step const release_scratch = [](auto& in) { static_cast<void>(in.scratch->claim(in.one, 300)); };
step const sync_one = [](auto& in) { sync(in.one); };

void add_scratch(rows& add) {
  step const end = [](auto& in) { in.scratch.reset(); };
  auto const claims = runs("scratch_pool::claim");
  add("scratch, made", runs("scratch_pool::scratch_pool"), {}, make_scratch);
  add("scratch, claim", claims, {make_scratch}, claim_scratch);
  add("scratch, claim in a capture", claims, {make_scratch, capturing}, claim_scratch);
  step const share_scratch = [](auto& in) {
    in.group.emplace();
    make_scratch(in);
    test::capture open{in.one, cudaStreamCaptureModeRelaxed};
    in.scratch->claim(in.one, 1000).release();
    must(open.end());
    in.sharing = std::move(open.graph());
  };
  add("scratch, claim a larger block of another graph", claims, {share_scratch, capturing},
      claim_scratch);
  add("scratch, close", runs("scratch_pool::close_for"),
      {make_scratch, claim_scratch, release_scratch},
      [](auto& in) { EXPECT_EQ(in.scratch->close_for(std::chrono::nanoseconds{0}).size(), 1U); });
  add("scratch, described", runs("scratch_pool::describe scratch_pool::holders"),
      {make_scratch, claim_scratch}, [](auto& in) { in.answer = in.scratch->describe(); });
  add("scratch, ended", runs("scratch_pool::~scratch_pool"),
      {make_scratch, claim_scratch, release_scratch}, end);
  add("scratch, reclaimed", runs("deleter::poll"),
      {make_scratch, claim_scratch, release_scratch, sync_one, end}, poll)
      .served_otherwise = at_next_poll;
  step const make_block = [](auto& in) { in.single.emplace(std::size_t{512}); };
  add("device block, made", runs("device_block::device_block"), {}, make_block);
  add("device block, ended", runs("device_block::~device_block"), {make_block},
      [](auto& in) { in.single.reset(); });
}

void add_memory(rows& add) {
  auto const claims = runs("scratch_pool::claim");
  step const trim = [](auto& in) { static_cast<void>(in.scratch->trim()); };
  add("scratch, trim", runs("scratch_pool::trim"),
      {make_scratch, claim_scratch, release_scratch, sync_one}, trim);
  add("scratch, trim in a capture", runs("scratch_pool::trim"),
      {make_scratch, release_scratch, sync_one, capturing}, trim);
  add("scratch of a device", runs("scratch_pools::on"), {}, [](auto& in) {
    scratch_pools pools({.deleter = in.worker.get()});
    in.scratch.emplace(std::move(pools.on(0)));
  });
  // 256 bytes are idle, and are freed for 320 or 448 more.
  step const make_limited = [](auto& in) {
    in.scratch.emplace(pool_options{.slots_max = 2, .deleter = in.worker.get()},
                       scratch_policy{.bytes_max = 640});
  };
  step const idle_small = [](auto& in) {
    in.scratch->claim(in.one, 256).release();
    sync(in.one);
  };
  step const claim_typed = [](pool_stage& in) {
    in.memory.emplace(in.scratch->claim<int>(in.one, 100));
  };
  add("scratch, claim beyond the limit", claims, {make_limited, claim_scratch, idle_small},
      claim_scratch);
  add("scratch, claim beyond the limit in a capture", claims, {make_limited, idle_small, capturing},
      claim_typed);
  step const make_unused = [](auto& in) {
    in.scratch.emplace(pool_options{.slots_max = 2, .deleter = in.worker.get()},
                       scratch_policy{.idle_max = std::chrono::nanoseconds(1)});
    in.scratch->claim(in.one, 256).release();
    sync(in.one);
    static_cast<void>(in.scratch->claim(in.one, 1000));
  };
  add("scratch, claim that returns unused blocks", claims, {make_unused}, claim_scratch);
  step const make_pinned = [](auto& in) {
    in.single.emplace(std::size_t{512}, memory_source::pinned_host());
  };
  auto const mem_pool = std::make_shared<cudaMemPool_t>();
  step const get_pool = [=](auto&) { must(cudaDeviceGetDefaultMemPool(mem_pool.get(), 0)); };
  step const make_pooled = [=](auto& in) {
    in.single.emplace(std::size_t{512}, memory_source::from(*mem_pool));
  };
  step const end_block = [](auto& in) { in.single.reset(); };
  add("pinned block, made", runs("memory_source::pinned_host"), {}, make_pinned);
  add("pinned block, ended", runs("device_block::~device_block"), {make_pinned}, end_block);
  add("block of a mem pool, made", runs("memory_source::from"), {get_pool}, make_pooled);
  add("block of a mem pool, ended", runs("device_block::~device_block"), {get_pool, make_pooled},
      end_block);
  add("device buffer, made", runs("device_buffer::device_buffer"), {},
      [](auto&) { device_buffer<int> const made(16); });
}

/// What the header says about releases of slots that other streams use, too. One record that fails
/// is tried again.
char const* const deferred = "the lease is empty then and its record deferred";
statements const unrecorded{{"cudaEventCreateWithFlags", deferred},
                            {"cudaStreamGetCaptureInfo", deferred},
                            {"cudaStreamGetId", deferred},
                            {"cudaGetDevice", deferred},
                            {"cudaSetDevice", deferred},
                            {"operator new", deferred}};
statements const reported{{"*", "errors at the end of a lease go to the deleter's on_error"}};

void add_eager_releases(rows& add) {
  auto const releases = runs("lease::release");
  auto const ends = runs("lease::~lease");
  rows::steps const with_others{pool_of(1), claim, recorded(other), recorded(third),
                                busy_on(third)};
  add("release", releases, {pool_of(1), claim, busy}, release);
  add("release on another stream", releases, {pool_of(1), claim, busy_on(other)},
      [](auto& in) { in.held->release(in.other.get()); });
  add("release with other streams", releases, with_others, release).stated = unrecorded;
  add("lease, ended", ends, with_others, drop).stated = reported;
  step const keep_another = [](auto& in) { in.kept.emplace(in.pool->claim(in.other)); };
  add("lease, assigned to", ends, {pool_of(2), claim, busy, keep_another}, [](auto& in) {
    *in.held = std::move(*in.kept);
    in.kept.reset();
    in.claimed_on.reset();
  }).stated = reported;
  step const legacy_while_blocking_captures = [](auto& in) {
    in.claim_on(cudaStreamLegacy);
    in.keep_busy(*in.held, cudaStreamLegacy);
    in.begin_capture(in.blocking);
  };
  add("legacy lease, ended while a blocking stream captures", ends,
      {pool_of(1), legacy_while_blocking_captures}, drop)
      .stated = reported;

  // The slot is used by another device, too, which goes on if the pool's is lost.
  step const used_elsewhere = [](auto& in) {
    in.keep_busy_elsewhere();
    in.claimed_on.reset();
  };
  rows::steps const two_devices{pool_of(1), claim, used_elsewhere};
  add("release, used on another device", releases, two_devices, release).stated = unrecorded;
  add("lease, ended, used on another device", ends, two_devices, drop).stated = reported;
  add("also used on another device", runs("lease::record_stream"), two_devices,
      [](auto& in) { in.held->record_stream(in.elsewhere); });
  step const end_pool = [](auto& in) { in.pool.reset(); };
  add("poll, a slot in use on another device", runs("deleter::poll"),
      {pool_of(1), claim, used_elsewhere, drop, end_pool}, poll)
      .served_otherwise = at_next_poll;
}

void add_captured_releases(rows& add) {
  auto const releases = runs("lease::release");
  step const reclaim_graph = [](auto& in) {
    in.captured.reset();
    in.worker->poll();
  };
  add("release in a capture", releases,
      {pool_of(1), capturing, claim, ordered(one, other), recorded(other)}, release);
  add("lease, ended in a capture", runs("lease::~lease"), {pool_of(1), capturing, claim}, drop);
  add("release after the capture", releases, {pool_of(1), capturing, claim, end_capture, busy},
      release);
  add("release after the graph", releases,
      {pool_of(1), capturing, claim, end_capture, reclaim_graph, busy}, release);
  add("release in a foreign capture", releases, {pool_of(1), claim, capturing}, release);
}

void add_uses(rows& add) {
  step const record = recorded(other);
  add("also used on", runs("lease::record_stream"), {pool_of(1), claim}, record);
  add("also used on, in a capture", runs("lease::record_stream"),
      {pool_of(1), capturing, claim, ordered(one, other), ordered(other, one)}, record);
  add("about to be used on", runs("lease::before_launch"), {pool_of(1), claim},
      [](auto& in) { in.held->before_launch(in.other); });
  step const share = [](auto& in) { in.share.emplace(in.held->share_with_node()); };
  add("shared with a node", runs("lease::share_with_node"), {pool_of(1), claim}, share);
  add("share, ended", {}, {pool_of(1), claim, share}, [](auto& in) { in.share.reset(); });
}

void add_pools(rows& add) {
  step const one_out_one_busy = [](auto& in) {
    in.kept.emplace(in.pool->claim(in.one));
    block_lease used = in.pool->claim(in.other);
    in.keep_busy(used, in.other);
  };
  add("pool, made", runs("resource_pool::resource_pool"), {}, pool_of(2));
  add("pool, described", runs("slot_pool::describe slot_pool::holders describe to_json"),
      {pool_of(2), one_out_one_busy}, [](auto& in) { in.answer = in.pool->describe(); });
  step const tracking_pool = [](auto& in) { in.make_pool(1, {}, true); };
  add("pool that tracks leases, exhausted", runs("resource_pool::claim"),
      {tracking_pool, [](auto& in) { in.kept.emplace(in.pool->claim(in.one)); }}, [](auto& in) {
        try {
          in.claim_on(in.one);
        } catch (pool_exhausted const& error) {
          in.answer = error.what();
        }
      });
  add("pool, closed", runs("resource_pool::close_for"), {pool_of(2), one_out_one_busy},
      [](auto& in) {
        in.is_closed = true;
        EXPECT_EQ(in.pool->close_for(std::chrono::nanoseconds{0}).size(), 1U);
      });
  add("pool, ended", runs("resource_pool::close_for"), {pool_of(2), one_out_one_busy},
      [](auto& in) { in.pool.reset(); });
  step const work_in_graph = [](auto& in) {
    in.recycles_when_seen = false;
    in.begin_capture(in.one);
    library_work(*in.pool, in.one, 1, in.mismatches);
    must(in.captured->end());
    in.captured.reset();
  };
  add("slot, returned from a graph", runs("deleter::poll"), {pool_of(1), work_in_graph}, poll)
      .served_otherwise = at_next_poll;
}

std::vector<operation> operations() {
  auto all = rows::of({add_claims, add_scratch, add_memory, add_eager_releases,
                       add_captured_releases, add_uses, add_pools});
  for (operation& each : all) {
    if (!each.stated.empty()) each.stated_shows = "deferred 1";
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Of, EveryCall, testing::ValuesIn(operations()), name_of);

}  // namespace
}  // namespace escrow::test
