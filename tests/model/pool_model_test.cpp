// The pool: claims and releases beside the closing, the library's own objects.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "escrow/core/error.hpp"
#include "escrow/deleter/deleter.hpp"
#include "escrow/pool/resource_pool.hpp"
#include "expect_fine.hpp"

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
  shared_pool()
      : reclaims(deleter_options{.own_worker = false}),
        pool(std::make_unique<pool_of>(pool_options{.slots_max = 1, .deleter = &reclaims},
                                       [this] { return std::make_unique<resource>(alive); })) {}

  std::atomic<int> alive{0};
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
    static_cast<void>(shared.pool->close_for(std::chrono::nanoseconds(0)));
    shared.reclaims.poll();
  });
  all.at_end([&shared] {
    shared.reclaims.poll();
    require(shared.pool->stats().slots == 0 && shared.alive.load() == 0,
            "a slot is left in a closed pool");
  });
}

TEST(Pool, NeverGivesASlotToTwoInManyExecutions) {
  expect_fine({.name = "two claim one slot", .random = executions(500)}, claim_beside_claim);
}

TEST(Pool, LeavesNoSlotBehindWhenItIsClosedBesideClaims) {
  expect_fine({.name = "two claim, the pool is closed", .random = executions(500)},
              close_beside_claims);
}

// A pool whose one slot comes back while it is closed: no other may be made in the room of it.
struct leased_pool : shared_pool {
  leased_pool() : held(pool->claim(stream_number(1))) {}
  std::optional<lease<std::unique_ptr<resource>>> held;
};

void close_beside_growth(world& all) {
  auto& shared = all.make<leased_pool>("pool");
  all.thread("claimer", [&shared] { use(shared, 2); });
  all.thread("closer",
             [&shared] { static_cast<void>(shared.pool->close_for(std::chrono::nanoseconds(0))); });
  all.thread("holder", [&shared] { shared.held.reset(); });
  // Nothing was reclaimed meanwhile.
  all.at_end([&shared] {
    require(shared.alive.load() == 1, "a closed pool has made a slot in the room of another");
  });
}

TEST(Pool, MakesNoSlotInTheRoomThatItsClosingLeaves) {
  expect_fine({.name = "growing beside closing, <= 1 switch, <= 1 old",
               .switches_max = 1,
               .older_max = 1,
               .knows_states = false},
              close_beside_growth);
  expect_fine({.name = "growing beside closing", .random = executions(1'000)}, close_beside_growth);
}

TEST(PlantedInThePool, ARelaxedCountOfSlotsIsFound) {
  constexpr auto relaxed = std::memory_order_relaxed;
  options const how{.name = "slots", .switches_max = 1, .older_max = 1, .knows_states = false};
  EXPECT_TRUE(finds_planted(how, close_beside_growth, "slot_pool::state::destroy",
                            std::memory_order_release, relaxed));
  EXPECT_TRUE(finds_planted(how, close_beside_growth, "slot_pool::state::make_slot",
                            std::memory_order_acquire, relaxed));
}

}  // namespace
}  // namespace escrow::model
