// SPDX-License-Identifier: Apache-2.0
// Every call of every operation of pools and claimers fails once: claim, use, release, flush,
// close.
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

/// What the header says about releases of slots that other streams use, too. One record that fails
/// is tried again.
char const* const deferred = "the lease is empty then and its record deferred";
statements const unrecorded{{"cudaEventCreateWithFlags", deferred},
                            {"cudaStreamGetCaptureInfo", deferred},
                            {"cudaStreamGetId", deferred},
                            {"cudaGetDevice", deferred},
                            {"cuDevicePrimaryCtxRetain", deferred},
                            {"cuCtxPushCurrent", deferred},
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

/// What the headers say about records of what claimers keep.
statements const kept_deferred{
    {"*", "if CUDA refuses to record, that is reported, and a deferred record"}};

step make_local(std::size_t slots, std::size_t unrecorded_max = 16) {
  return [=](auto& in) {
    in.unrecorded_max = unrecorded_max;
    in.make_pool(slots);
    in.local.emplace(in.pool->on(in.one));
  };
}
step const claim_local = [](auto& in) {
  in.held.emplace(in.local->claim());
  in.claimed_on = in.one;
};
/// So many are idle; the last is in use.
step idle_in_local(int count) {
  return [=](auto& in) {
    std::vector<block_lease> all;
    while (static_cast<int>(all.size()) < count) all.push_back(in.local->claim());
    in.keep_busy(all.front(), in.one);
    while (!all.empty()) all.pop_back();
  };
}
step const asked_for = [](auto& in) { static_cast<void>(in.pool->claim(in.other)); };
step const end_local = [](auto& in) { in.local.reset(); };

void add_claimers(rows& add) {
  auto const makes = runs("resource_pool::on");
  auto const claims = runs("claimer::claim");
  auto const releases = runs("lease::release");
  step const make_only = [](auto& in) { in.local.emplace(in.pool->on(in.one)); };
  add("claimer, made", makes, {pool_of(2)}, make_only);
  add("claimer, made in a capture", makes, {pool_of(2), capturing}, make_only);
  add("claimer, first claim", claims, {make_local(2)}, claim_local);
  add("claimer, claim, what is idle", claims, {make_local(4), idle_in_local(1)}, claim_local);
  auto& asked = add("claimer, claim, others have asked", claims,
                    {make_local(4), idle_in_local(2), asked_for}, claim_local);
  asked.stated = kept_deferred;
  asked.stated_shows = "deferred 1";
  add("claimer, claim in a capture", claims, {make_local(4), idle_in_local(1), capturing},
      claim_local);
  add("claimer, try claim", runs("claimer::try_claim"), {make_local(4), idle_in_local(1)},
      [](auto& in) {
        if (auto found = in.local->try_claim()) in.held.emplace(std::move(*found));
      });
  add("claimer's lease, released", releases, {make_local(4), claim_local, busy}, release);
  add("claimer's lease, ended", runs("lease::~lease"), {make_local(4), claim_local, busy}, drop);
  auto& full =
      add("claimer's lease, released as one too many", releases,
          {make_local(8, 1), idle_in_local(1), [](auto& in) { in.kept.emplace(in.local->claim()); },
           claim_local, busy, [](auto& in) { in.kept.reset(); }},
          release);
  full.stated = kept_deferred;
  full.stated_shows = "deferred 2";
  add("claimer's lease, released in a foreign capture", releases,
      {make_local(4), claim_local, capturing}, release);
  add("claimer's lease, released after the claimer", releases,
      {make_local(4), claim_local, busy, end_local}, release);
  auto& flush = add("claimer, flush", runs("claimer::flush"), {make_local(4), idle_in_local(1)},
                    [](auto& in) { in.local->flush(); });
  flush.stated = kept_deferred;
  add("claimer, ended", runs("claimer_slots::~claimer_slots"), {make_local(4), idle_in_local(1)},
      end_local)
      .stated = kept_deferred;
  add("claimer, ended in a capture", {}, {make_local(4), idle_in_local(1), capturing}, end_local)
      .stated = kept_deferred;
  add("claimer, ended after its pool", {},
      {make_local(4), idle_in_local(1), [](auto& in) { in.pool.reset(); }}, end_local)
      .served_otherwise = {{"*", "a slot that cannot be recorded is leaked"}};
}

void add_lasting_streams(rows& add) {
  step const lasting_pool = [](auto& in) {
    in.streams_outlive_pool = true;
    in.make_pool(4);
  };
  add("claim, the first of a lasting stream", runs("resource_pool::claim"), {lasting_pool}, claim);
  add("claim, what a lasting stream keeps", runs("resource_pool::claim"),
      {lasting_pool, busy_and_free({}, one)}, claim);
  add("release on a lasting stream", runs("lease::release"), {lasting_pool, claim, busy}, release);
  add("pool of lasting streams, closed", runs("resource_pool::close_for"),
      {lasting_pool, busy_and_free({}, one)},
      [](auto& in) {
        in.is_closed = true;
        static_cast<void>(in.pool->close_for(std::chrono::nanoseconds{0}));
      })
      .stated = kept_deferred;
  add("pool of lasting streams, ended", {}, {lasting_pool, busy_and_free({}, one)}, [](auto& in) {
    in.pool.reset();
  }).served_otherwise = {{"*", "a slot that cannot be recorded is leaked"}};
}

void add_host_claims(rows& add) {
  auto const claims = runs("resource_pool::claim_for_host");
  step const claim_for_host = [](auto& in) {
    in.held.emplace(in.pool->claim_for_host(in.one));
    in.claimed_on = in.one;
  };
  statements const not_taken{
      {"cudaEventQuery", "a slot that is not known to be done is not taken"}};
  add("claim for the host, a new slot", claims, {pool_of(2)}, claim_for_host);
  add("claim for the host, one that is done", claims, {pool_of(2), done_and_free}, claim_for_host)
      .served_otherwise = not_taken;
  add("claim for the host, beside a busy one", claims, {pool_of(2), busy_and_free({third}, one)},
      claim_for_host);
  add("claim for the host, in a capture", claims, {pool_of(2), done_and_free, capturing},
      claim_for_host)
      .served_otherwise = not_taken;
  add("claimer, claim for the host", runs("claimer::claim_for_host"),
      {make_local(4), busy_and_free({}, one)}, [](auto& in) {
        in.held.emplace(in.local->claim_for_host());
        in.claimed_on = in.one;
      });
  step const kept_for_host = [](auto& in) { in.held.emplace(in.local->claim_for_host()); };
  add("claimer's lease for the host, released", runs("lease::release"),
      {make_local(4), kept_for_host, busy}, release);
}

void add_kept_claims(rows& add) {
  auto const keep = [](auto& in) { in.held.emplace(in.pool->claim_kept(in.one)); };
  add("claim that is kept, in a capture", runs("resource_pool::claim_kept"),
      {pool_of(2), done_and_free, capturing}, keep)
      .served_otherwise = {{"cudaEventQuery", "another slot is made"}};
  add("claimer, claim that is kept, in a capture", runs("claimer::claim_kept"),
      {make_local(2), capturing}, [](auto& in) { in.held.emplace(in.local->claim_kept()); });
  add("release of what is kept, in a capture", runs("lease::release"),
      {pool_of(2), capturing, keep}, release);

  step const held_pool = [](auto& in) {
    in.held_until_closed = true;
    in.make_pool(2);
  };
  add("pool held until closed, claim in a capture", runs("resource_pool::claim"),
      {held_pool, capturing}, claim);
  rows::steps const captured_use{held_pool, capturing, claim, end_capture};
  add("pool held until closed, closed", runs("resource_pool::close_for"), captured_use,
      [](auto& in) {
        in.is_closed = true;
        try {
          static_cast<void>(in.pool->close_for(std::chrono::nanoseconds{0}));
        } catch (std::bad_alloc const&) {  // of the answer: it is closed
        }
      });
  add("pool held until closed, ended without that", runs("slot_pool::close_and_leave"),
      captured_use, [](auto& in) { in.pool.reset(); })
      .served_otherwise = {{"operator new", "without memory for its text, the error is not told"}};
}

std::vector<operation> operations() {
  auto all = rows::of({add_claims, add_eager_releases, add_captured_releases, add_uses, add_pools,
                       add_claimers, add_lasting_streams, add_host_claims, add_kept_claims});
  for (operation& each : all)
    if (!each.stated.empty() && each.stated_shows.empty()) each.stated_shows = "deferred 1";
  return all;
}

INSTANTIATE_TEST_SUITE_P(Of, EveryCall, testing::ValuesIn(operations()), name_of);

}  // namespace
}  // namespace escrow::test
