// What is idle for a stream of a scratch pool makes room for its other sizes, and comes back; and
// the errors of its claimers.
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "pool_world.hpp"

namespace escrow::test {
namespace {

class IdleOfAScratchClaimer : public pool_world {
 protected:
  [[nodiscard]] pool_options lasting() {
    return with(options(8), &pool_options::streams_outlive_pool, true);
  }
};

TEST_F(IdleOfAScratchClaimer, MakesRoomForItsStreamsClaimsOfOtherSizes) {
  scratch_pool pool(options(8), {.bytes_max = 4096});
  scratch_claimer local = pool.on(one);
  { auto held = local.claim(4096); }
  EXPECT_EQ(local.claim(2048)->size(), 2048U);
  { auto held = local.claim(1024); }
  EXPECT_EQ(pool.claim(one, 4096)->size(), 4096U);
}

TEST_F(IdleOfAScratchClaimer, OrStreamMakesRoomForItsClaimsOfOtherSizes) {
  scratch_pool pool(lasting(), {.bytes_max = 4096});
  { auto held = pool.claim(one, 4096); }
  EXPECT_EQ(pool.claim(one, 2048)->size(), 2048U);
}

TEST_F(IdleOfAScratchClaimer, OfSizesItUsesNoMoreComesBackAtItsNextClaim) {
  scratch_pool pool(options(8));
  scratch_claimer local = pool.on(one);
  { auto held = local.claim(4096); }
  sync(one);
  EXPECT_EQ(pool.trim(), 0U);
  { auto held = local.claim(1024); }
  sync(one);
  EXPECT_EQ(pool.trim(), 4096U);
}

TEST_F(IdleOfAScratchClaimer, ComesBackAfterIdleMax) {
  for (bool const is_lasting : {false, true}) {
    scratch_pool pool(is_lasting ? lasting() : options(8),
                      {.idle_max = std::chrono::nanoseconds(1)});
    std::optional<scratch_claimer> local;
    if (!is_lasting) local.emplace(pool.on(one));
    auto const claim = [&](std::size_t bytes) {
      static_cast<void>(local ? local->claim(bytes) : pool.claim(one, bytes));
    };
    claim(4096);
    sync(one);
    EXPECT_TRUE(wait_until([&] {
      claim(1024);
      return pool.bytes() < 4096;
    }));
  }
}

TEST_F(IdleOfAScratchClaimer, IsNotInUse) {
  scratch_pool pool(options(8));
  scratch_claimer local = pool.on(one);
  { auto held = local.claim(4096); }
  EXPECT_EQ(pool.stats().bytes_idle, 4096U);
  EXPECT_EQ(pool.stats().bytes_in_use, 0U);
}

// Each size is asked for unused blocks, or for those of a graph, by claims of any size.
TEST_F(IdleOfAScratchClaimer, MayOutliveAPoolAlsoWithOptionsThatLookAtAllSizes) {
  using std::chrono::nanoseconds;
  for (auto const& [is_in_group, idle_max] :
       {std::pair{false, nanoseconds(0)}, {false, nanoseconds(1)}, {true, nanoseconds(1)}}) {
    pool_options given = options(8);
    if (is_in_group) given.group.emplace();
    std::optional<scratch_pool> pool(std::in_place, given, scratch_policy{.idle_max = idle_max});
    scratch_claimer local = pool->on(one);
    auto held = local.claim(1000);
    pool.reset();
    for (std::size_t const bytes : {1000U, 5000U}) {
      expect_error<usage_error>([&] { return local.claim(bytes); }, {"closed"});
    }
    capture captured{one, cudaStreamCaptureModeRelaxed};
    expect_error<usage_error>([&] { return local.claim(1000); }, {"closed"});
    must(captured.end());
  }
}

TEST_F(IdleOfAScratchClaimer, IsFreedAfterThePoolWithTheClaimer) {
  std::optional<scratch_pool> pool(std::in_place, options(8));
  std::optional<scratch_claimer> local = pool->on(one);
  { auto held = local->claim(1000); }
  hold_up(one);
  pool.reset();
  local = scratch_pool(options(8)).on(two);  // the first ends, and the second's pool
  flag.raise();
  EXPECT_TRUE(drained());
}

using ScratchClaimer = pool_world;

TEST_F(ScratchClaimer, ServesEachSize) {
  scratch_pool pool(options(8));
  scratch_claimer local = pool.on(one);
  void* const first = local.claim(1000)->data();
  void* const second = local.claim(5000)->data();
  EXPECT_EQ(local.claim(1000)->data(), first);
  EXPECT_EQ(local.claim<int>(1250).data(), second);
  local.flush();
  sync(one);
  EXPECT_GT(pool.trim(), 0U);
  EXPECT_EQ(pool.bytes(), 0U);
}

TEST_F(ScratchClaimer, GivesBackAtItsNextCallAfterAClaimThatFoundNoRoom) {
  scratch_pool pool(options(8), {.bytes_max = 4096});
  scratch_claimer local = pool.on(one);
  { auto held = local.claim(4096); }
  EXPECT_THROW(static_cast<void>(pool.claim(two, 2048)), pool_exhausted);
  { auto held = local.claim(4096); }
  sync(one);
  EXPECT_EQ(pool.claim(two, 2048)->size(), 2048U);
}

TEST_F(ScratchClaimer, RecordsWhatACaptureDeferredInAllSizes) {
  for (bool const is_flushed : {false, true}) {
    scratch_pool pool(options(1));
    scratch_claimer local = pool.on(one);
    { auto const known = local.claim(5000); }
    auto held = pool.claim(two, 1000);
    {
      capture captured{one, cudaStreamCaptureModeRelaxed};
      held.release(one);
      must(captured.end());
    }
    ASSERT_TRUE(drained());
    EXPECT_EQ(pool.stats().bytes_in_use, 1024U);
    if (is_flushed) {
      local.flush();
    } else {
      static_cast<void>(local.claim(5000));
    }
    EXPECT_EQ(pool.stats().bytes_in_use, 0U);
  }
}

TEST_F(ScratchClaimer, OfThePerThreadStreamIsOfItsThreadAlsoInASharingGroup) {
  pool_options given = options(8);
  given.group.emplace();
  scratch_pool pool(given);
  owned_graph const first = captured_claim(pool, 1000);
  scratch_claimer local = pool.on(cudaStreamPerThread);
  std::thread([&] {
    capture captured{cudaStreamPerThread, cudaStreamCaptureModeRelaxed};
    expect_error<usage_error>([&] { return local.claim(1000); },
                              {"cudaStreamPerThread", "on each thread"});
    must(captured.end());
  }).join();
}

TEST_F(ScratchClaimer, OfThePerThreadStreamIsOfItsDeviceAlsoInASharingGroup) {
  if (!has_two_devices()) GTEST_SKIP() << "needs two devices";
  pool_options given = options(8);
  given.group.emplace();
  scratch_pool pool(given);
  scratch_claimer local = pool.on(cudaStreamPerThread);
  static_cast<void>(local.claim(1000));
  device_scope const other(1);
  capture captured{cudaStreamPerThread, cudaStreamCaptureModeRelaxed};
  EXPECT_EQ(local.claim(1000)->size(), 1024U);
  EXPECT_EQ(pool.stats().bytes_in_graphs, 0U);
  must(captured.end());
}

TEST_F(ScratchClaimer, NamesTheCallInErrors) {
  scratch_pool pool(options(1));
  scratch_claimer made = pool.on(one);
  scratch_claimer local = std::move(made);
  auto const claim = [](scratch_claimer& from, std::size_t bytes) {
    return [&from, bytes] { static_cast<void>(from.claim(bytes)); };
  };
  std::string const call = "scratch_claimer::claim: ";
  expect_error<usage_error>([&] { made.flush(); },
                            {"scratch_claimer::flush: ", "moved"});  // NOLINT
  expect_error<usage_error>(claim(made, 1), {call, "moved"});        // NOLINT: moved from
  expect_error<usage_error>(claim(local, scratch_pool::bytes_max + 1), {call, "bytes"});
  auto const held = local.claim(1000);
  expect_error<pool_exhausted>(claim(local, 1000), {call, "all 1 slots"});
  {
    capture captured{one, cudaStreamCaptureModeRelaxed};
    expect_error<usage_error>([&] { local.flush(); }, {"scratch_claimer::flush: ", "captured"});
    must(captured.end());
  }
  EXPECT_EQ(pool.close_for(std::chrono::nanoseconds(0)).size(), 1U);
  expect_error<usage_error>(claim(local, 1000), {call, "closed"});
  expect_error<usage_error>(claim(local, 5000), {call, "closed"});
  expect_error<usage_error>([&] { return pool.on(two); }, {"scratch_pool::on: ", "closed"});
}

}  // namespace
}  // namespace escrow::test
