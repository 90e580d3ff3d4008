// SPDX-License-Identifier: Apache-2.0
// The pool: claims and releases beside the closing, claimers beside all of these, the library's own
// objects.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "escrow/core/error.hpp"
#include "escrow/deleter/deleter.hpp"
#include "escrow/pool/resource_pool.hpp"
#include "expect_fine.hpp"
#include "size_class.hpp"

namespace escrow::model {
namespace {

struct resource {
  explicit resource(std::atomic<int>& of) : alive(&of) {
    alive->fetch_add(1, std::memory_order_relaxed);
  }
  ~resource() { alive->fetch_sub(1, std::memory_order_relaxed); }
  std::atomic<int>* alive;
  int used = 0;  // plain: two holders at a time would race
};

using pool_of = resource_pool<std::unique_ptr<resource>>;

struct shared_pool {
  explicit shared_pool(pool_options options = {.slots_max = 1})
      : reclaims(deleter_options{.own_worker = false}) {
    options.deleter = &reclaims;
    pool = std::make_unique<pool_of>(options, [this] {
      made.fetch_add(1, std::memory_order_relaxed);
      return std::make_unique<resource>(alive);
    });
  }

  void close() { static_cast<void>(pool->close_for(std::chrono::nanoseconds(0))); }
  /// After it was closed.
  void require_empty() {
    reclaims.poll();
    require(pool->stats().slots == 0 && alive.load() == 0, "a slot is left in a closed pool");
  }

  std::atomic<int> alive{0};
  std::atomic<int> made{0};
  deleter reclaims;
  std::unique_ptr<pool_of> pool;
};

stream_ref stream_number(std::uintptr_t number) {
  return reinterpret_cast<cudaStream_t>(number * 16);
}

// Claims, uses, releases; may find no slot, or the pool closed.
void use(shared_pool& shared, std::uintptr_t stream) {
  try {
    auto lease = shared.pool->try_claim(stream_number(stream));
    if (!lease) return;
    ++(**lease)->used;
  } catch (usage_error const&) {  // closed
  }
}

options few_switches(char const* name) {
  return {.name = name, .switches_max = 1, .older_max = 1, .knows_states = false};
}
options at_random(char const* name) {
  return {.name = name, .random = executions(500)};
}

void expect_fine_in_both(char const* name, program const& what) {
  expect_fine(few_switches(name), what);
  expect_fine(at_random(name), what);
}

void claim_beside_claim(world& all) {
  auto& shared = all.make<shared_pool>("pool");
  for (std::uintptr_t i = 1; i <= 2; ++i) {
    all.thread("claimer " + std::to_string(i), [&shared, i] {
      for (int round = 0; round < 2; ++round) use(shared, i);
    });
  }
  all.at_end([&shared] { require(shared.alive.load() <= 1, "more slots than slots_max"); });
}

// The pool is closed while two claim, and what is left is reclaimed.
void close_beside_claims(world& all) {
  auto& shared = all.make<shared_pool>("pool");
  all.thread("claimer 1", [&shared] { use(shared, 1); });
  all.thread("claimer 2", [&shared] { use(shared, 2); });
  all.thread("closer", [&shared] {
    shared.close();
    shared.reclaims.poll();
  });
  all.at_end([&shared] { shared.require_empty(); });
}

TEST(Pool, NeverGivesASlotToTwoInManyExecutions) {
  expect_fine(at_random("two claim one slot"), claim_beside_claim);
}

TEST(Pool, LeavesNoSlotBehindWhenItIsClosedBesideClaims) {
  expect_fine(at_random("two claim, the pool is closed"), close_beside_claims);
}

// A pool whose one slot comes back while it is closed: no other may be made in the room of it.
struct leased_pool : shared_pool {
  leased_pool() : held(pool->claim(stream_number(1))) {}
  std::optional<lease<std::unique_ptr<resource>>> held;
};

void close_beside_growth(world& all) {
  auto& shared = all.make<leased_pool>("pool");
  all.thread("claimer", [&shared] { use(shared, 2); });
  all.thread("closer", [&shared] { shared.close(); });
  all.thread("holder", [&shared] { shared.held.reset(); });
  // Nothing was reclaimed meanwhile.
  all.at_end([&shared] {
    require(shared.alive.load() == 1, "a closed pool has made a slot in the room of another");
  });
}

// The room of a slot is there once it is reclaimed.
void reclaim_beside_growth(world& all) {
  auto& shared = all.make<leased_pool>("pool");
  all.thread("claimer", [&shared] { use(shared, 2); });
  all.thread("closer", [&shared] {
    shared.held.reset();
    shared.close();
    shared.reclaims.poll();
  });
  all.at_end([&shared] {
    require(shared.made.load() == 1, "a closed pool has made a slot in the room of another");
  });
}

// The same for a slot that comes back only then: no list of free slots tells the claim.
void reclaim_after_closing(world& all) {
  auto& shared = all.make<leased_pool>("pool");
  all.thread("claimer", [&shared] { use(shared, 2); });
  all.thread("closer", [&shared] {
    shared.close();
    shared.held.reset();
    shared.reclaims.poll();
  });
  all.at_end([&shared] {
    require(shared.made.load() == 1, "a closed pool has made a slot in the room of another");
  });
}

// What is made in the room of a slot comes after all of that is gone. (Elsewhere the lock of the
// cached events sees to it, too.)
struct one_room {
  one_room() {
    static_cast<void>(slots.try_add(1, [] { return true; }));
  }
  slot_count slots;
  int memory = 0;  // plain: two at a time would race
};

void end_beside_growth(world& all) {
  auto& shared = all.make<one_room>("room");
  all.thread("owner", [&shared] {
    shared.slots.begin_end();
    ++shared.memory;
    shared.slots.end();
  });
  all.thread("claimer", [&shared] {
    if (shared.slots.try_add(1, [] { return true; }) != 0) ++shared.memory;
  });
  all.at_end([&shared] { require(!shared.slots.is_any_ending(), "it is ending for ever"); });
}

TEST(Pool, MakesASlotInTheRoomOfOneAfterItsEnd) {
  expect_fine({.name = "growing beside a slot's end"}, end_beside_growth);
}

TEST(Pool, MakesNoSlotInTheRoomThatItsClosingLeaves) {
  expect_fine(few_switches("growing beside reclaiming, <= 1 switch, <= 1 old"),
              reclaim_beside_growth);
  expect_fine(few_switches("growing beside a late release, <= 1 switch, <= 1 old"),
              reclaim_after_closing);
  expect_fine(few_switches("growing beside closing, <= 1 switch, <= 1 old"), close_beside_growth);
  expect_fine({.name = "growing beside closing", .random = executions(1'000)}, close_beside_growth);
}

using claimer_of = claimer<std::unique_ptr<resource>>;

// With a claimer of stream 1 that has an idle slot, and another slot at most.
struct claimed_pool : shared_pool {
  explicit claimed_pool(pool_options options = {.slots_max = 2})
      : shared_pool(options), local(pool->on(stream_number(1))) {
    for (int i = 0; i < 2; ++i) static_cast<void>(local->claim());
  }
  // All that was made is idle or with its lease, and all is destroyed with the pool.
  void require_nothing_lost() {
    held.reset();
    kept.reset();
    local.reset();
    if (pool != nullptr) {
      reclaims.poll();
      pool_stats const now = pool->stats();
      require(now.leased == 0 && now.unrecorded == 0 && now.deferred == 0, "a slot was lost");
      require(now.idle == now.slots, "a slot was lost on its way");
      pool.reset();
    }
    reclaims.poll();
    reclaims.poll();
    require(alive.load() == 0, "a slot is left after its pool");
  }

  std::optional<claimer_of> local;
  std::optional<lease<std::unique_ptr<resource>>> held;
  std::optional<lease<std::unique_ptr<resource>>> kept;
};

struct claimed_and_leased_pool : claimed_pool {
  claimed_and_leased_pool() { held = local->claim(); }
  void use_and_release() {
    ++(**held)->used;
    held.reset();
  }
};

void use_local(claimed_pool& shared) {
  auto lease = shared.local->try_claim();
  if (lease) ++(**lease)->used;
}

void claimer_beside_claims(world& all) {
  auto& shared = all.make<claimed_pool>("pool");
  all.thread("claimer", [&shared] {
    for (int round = 0; round < 2; ++round) use_local(shared);
    shared.local.reset();
  });
  all.thread("other", [&shared] {
    for (int round = 0; round < 2; ++round) {
      auto lease = shared.pool->try_claim(stream_number(2));
      if (lease) ++(**lease)->used;
    }
  });
  all.at_end([&shared] { shared.require_nothing_lost(); });
}

void lease_beside_its_claimers_end(world& all) {
  auto& shared = all.make<claimed_and_leased_pool>("pool");
  all.thread("claimer", [&shared] { shared.local.reset(); });
  all.thread("holder", [&shared] { shared.use_and_release(); });
  all.at_end([&shared] { shared.require_nothing_lost(); });
}

// The claimer's next one, of another stream or the same, takes over what this one used.
void lease_beside_the_next_claimer(world& all) {
  auto& shared = all.make<claimed_and_leased_pool>("pool");
  all.thread("claimer", [&shared] {
    for (std::uintptr_t const next : {2U, 1U}) {
      shared.local.reset();
      shared.local.emplace(shared.pool->on(stream_number(next)));
      use_local(shared);
    }
  });
  all.thread("holder", [&shared] { shared.use_and_release(); });
  all.at_end([&shared] { shared.require_nothing_lost(); });
}

void pools_end_beside_a_claimers_lease(world& all) {
  auto& shared = all.make<claimed_and_leased_pool>("pool");
  all.thread("owner", [&shared] { shared.pool.reset(); });
  all.thread("claimer", [&shared] { shared.local.reset(); });
  all.thread("holder", [&shared] { shared.held.reset(); });
  all.at_end([&shared] { shared.require_nothing_lost(); });
}

// The other slot stays leased.
struct full_pool : claimed_pool {
  full_pool() : claimed_pool({.slots_max = 2, .host_wait_max = std::chrono::hours(1)}) {
    kept = pool->claim(stream_number(2));
    held = local->claim();
    // What was asked for until now is answered.
    held->release();
    held = local->claim();
  }
};

// It waits for the lease, which ends before or after the claim has looked for what is idle.
void claim_beside_a_release(world& all) {
  auto& shared = all.make<full_pool>("pool");
  all.thread("claimer", [&shared] {
    try {
      auto lease = shared.local->claim();
      ++(*lease)->used;
    } catch (pool_exhausted const&) {
      require(false, "a claim has not seen what was released while it waited");
    }
  });
  all.thread("holder", [&shared] { shared.held.reset(); });
  all.at_end([&shared] { shared.require_nothing_lost(); });
}

// Streams that outlive the pool, each used for the first time.
struct lasting_pool : shared_pool {
  lasting_pool() : shared_pool({.slots_max = 4, .streams_outlive_pool = true}) {
    pool->claim(stream_number(3)).release(stream_number(4));  // one that any stream gets
  }
};

void close_beside_first_claims(world& all) {
  auto& shared = all.make<lasting_pool>("pool");
  all.thread("claimer 1", [&shared] { use(shared, 1); });
  all.thread("closer", [&shared] { shared.close(); });
  all.at_end([&shared] { shared.require_empty(); });
}

void first_claims_of_one_stream(world& all) {
  auto& shared = all.make<lasting_pool>("pool");
  for (int i = 1; i <= 2; ++i) {
    all.thread("claimer " + std::to_string(i), [&shared] { use(shared, 1); });
  }
  all.at_end([&shared] {
    shared.close();
    shared.require_empty();
  });
}

TEST(Claimer, SharesNoSlotAndLosesNoneBesideClaimsOfThePool) {
  expect_fine(at_random("a claimer beside claims"), claimer_beside_claims);
}

TEST(Claimer, MayEndBesideALeaseOfIt) {
  expect_fine_in_both("a lease ends with its claimer", lease_beside_its_claimers_end);
  expect_fine(at_random("a lease ends with the next claimer"), lease_beside_the_next_claimer);
}

TEST(Claimer, AndALeaseOfItMayEndBesideThePool) {
  expect_fine_in_both("pool, claimer and lease end", pools_end_beside_a_claimers_lease);
}

TEST(Claimer, SeesAReleaseThatComesWhileItClaims) {
  expect_fine_in_both("a claim waits beside a release", claim_beside_a_release);
}

TEST(LastingStreams, LeaveNoSlotInAPoolThatIsClosedBesideTheirFirstClaims) {
  expect_fine({.name = "a stream's first claim, the pool is closed, <= 2 switches",
               .switches_max = 2,
               .older_max = 0,
               .knows_states = false},
              close_beside_first_claims);
  expect_fine(at_random("a stream's first claim, the pool is closed"), close_beside_first_claims);
}

TEST(LastingStreams, MayBeUsedForTheFirstTimeByTwoThreads) {
  expect_fine(at_random("two first claims of a stream"), first_claims_of_one_stream);
}

TEST(PlantedInThePool, WeakerOrdersAreFound) {
  constexpr auto acquire = std::memory_order_acquire;
  constexpr auto release = std::memory_order_release;
  struct row {
    program what;
    char const* function;
    std::memory_order order;  // relaxed instead
  };
  for (row const& each : {row{lease_beside_its_claimers_end, "spin_lock::unlock", release},
                          row{end_beside_growth, "slot_count::end", release},
                          row{reclaim_after_closing, "slot_count::load", acquire}}) {
    EXPECT_TRUE(finds_planted(few_switches(each.function), each.what, each.function, each.order,
                              std::memory_order_relaxed));
  }
}

}  // namespace
}  // namespace escrow::model
