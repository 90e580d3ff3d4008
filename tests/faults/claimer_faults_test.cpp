// Every call of every operation of claimers, and of streams that outlive their pool, fails once.
#include "every_call.hpp"
#include "pool_stage.hpp"

namespace escrow::test {
namespace {

step const busy_and_idle = [](auto& in) {
  block_lease used = in.pool->claim(in.one);
  in.keep_busy(used, in.one);
};

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

void add_scratch_claimers(rows& add) {
  step const make = [](auto& in) { in.local_scratch.emplace(in.scratch->on(in.one)); };
  step const claim_it = [](auto& in) { in.memory.emplace(in.local_scratch->claim(300)); };
  step const idle = [](auto& in) {
    in.local_bytes = 300;
    static_cast<void>(in.local_scratch->claim(300));
  };
  step const make_pool = [](auto& in) {
    in.scratch.emplace(pool_options{.slots_max = 4, .deleter = in.worker.get()});
  };
  auto const claims = runs("scratch_claimer::claim");
  add("scratch claimer, made", runs("scratch_pool::on scratch_claimer::scratch_claimer"),
      {make_pool}, make);
  add("scratch claimer, claim of a new size", claims, {make_pool, make}, claim_it);
  add("scratch claimer, claim of what is idle", claims, {make_pool, make, idle}, claim_it);
  add("scratch claimer, claim of another size, others have asked", claims,
      {make_pool, make, idle,
       [](auto& in) { static_cast<void>(in.scratch->claim(in.other, 300)); }},
      [](auto& in) { in.memory.emplace(in.local_scratch->claim(256)); });
  add("scratch claimer, flush", runs("scratch_claimer::flush"), {make_pool, make, idle},
      [](auto& in) { in.local_scratch->flush(); });
  add("scratch claimer, ended", runs("scratch_claimer::~scratch_claimer"), {make_pool, make, idle},
      [](auto& in) { in.local_scratch.reset(); });
}

void add_lasting_streams(rows& add) {
  step const lasting_pool = [](auto& in) {
    in.streams_outlive_pool = true;
    in.make_pool(4);
  };
  add("claim, the first of a lasting stream", runs("resource_pool::claim"), {lasting_pool}, claim);
  add("claim, what a lasting stream keeps", runs("resource_pool::claim"),
      {lasting_pool, busy_and_idle}, claim);
  add("release on a lasting stream", runs("lease::release"), {lasting_pool, claim, busy}, release);
  add("pool of lasting streams, closed", runs("resource_pool::close_for"),
      {lasting_pool, busy_and_idle},
      [](auto& in) {
        in.is_closed = true;
        static_cast<void>(in.pool->close_for(std::chrono::nanoseconds{0}));
      })
      .stated = kept_deferred;
  add("pool of lasting streams, ended", {}, {lasting_pool, busy_and_idle}, [](auto& in) {
    in.pool.reset();
  }).served_otherwise = {{"*", "a slot that cannot be recorded is leaked"}};
}

std::vector<operation> operations() {
  auto all = rows::of({add_claimers, add_scratch_claimers, add_lasting_streams});
  for (operation& each : all) {
    if (!each.stated.empty() && each.stated_shows.empty()) each.stated_shows = "deferred 1";
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Of, EveryCall, testing::ValuesIn(operations()), name_of);

}  // namespace
}  // namespace escrow::test
