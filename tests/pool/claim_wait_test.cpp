// Claims when every slot is out or busy: they wait in the stream, on the host within a bound, or
// not at all.
#include <optional>
#include <thread>

#include "pool_world.hpp"

namespace escrow::test {
namespace {

using namespace std::chrono_literals;
using clock = std::chrono::steady_clock;

class ClaimWait : public pool_world {
 protected:
  /// Runs `then` once a claim of the pool blocks its host thread.
  [[nodiscard]] static std::jthread when_blocked(block_pool& pool, std::function<void()> then) {
    return std::jthread([&pool, then = std::move(then)] {
      EXPECT_TRUE(wait_until([&] { return pool.stats().host_waits == 1; }));
      then();
    });
  }
  [[nodiscard]] pool_options waiting(std::chrono::nanoseconds host_wait_max) {
    return with(options(1), &pool_options::host_wait_max, host_wait_max);
  }
};

TEST_F(ClaimWait, ABusySlotIsHandedOutAndItsNextWorkRunsAfterTheFirst) {
  block_pool pool = make_pool(1);
  use_behind_flag(pool, one);
  expect_next_waits(pool, two);  // the claim returns while the kernel runs
  EXPECT_EQ(pool.stats().stream_waits, 1U);
}

TEST_F(ClaimWait, WithAllSlotsLeasedAClaimThrowsAtOnceAndNamesWhatToDo) {
  block_pool pool = make_pool(2);
  block_lease const first = pool.claim(one);
  block_lease const second = pool.claim(one);
  expect_error<pool_exhausted>(
      [&] { return pool.claim(one); },
      {"resource_pool::claim", "\"blocks\"", "slots_max 2", "host_wait_max"});
  EXPECT_FALSE(pool.try_claim(one).has_value());
  EXPECT_EQ(pool.stats().host_waits, 0U);
}

TEST_F(ClaimWait, TheErrorNamesTheCapturesThatHoldSlotsAndTheLineOfTheirClaim) {
  block_pool pool = make_pool(1);
  capture captured{one, cudaStreamCaptureModeGlobal};
  auto const id = captured.info().id;
  int const line = __LINE__ + 1;
  pool.claim(one).release();
  must(captured.end());
  expect_error<pool_exhausted>(
      [&] { return pool.claim(one); },
      {"capture " + std::to_string(id), "holds 1", "claim_wait_test.cpp:" + std::to_string(line)});
}

TEST_F(ClaimWait, AClaimBlocksTheHostForAsLongAsItMayAndNotMuchLonger) {
  block_pool pool = make_pool(waiting(50ms));
  block_lease const held = pool.claim(one);
  for (std::function<void()> const& claim :
       {std::function<void()>(
            [&] { EXPECT_THROW(static_cast<void>(pool.claim(one)), pool_exhausted); }),
        std::function<void()>([&] { EXPECT_FALSE(pool.try_claim_for(one, 50ms).has_value()); })}) {
    auto const begin = clock::now();
    claim();
    EXPECT_GE(clock::now() - begin, 50ms);
    EXPECT_LT(clock::now() - begin, generous);
  }
  EXPECT_EQ(pool.stats().host_waits, 2U);
  EXPECT_FALSE(pool.try_claim(one).has_value());
  EXPECT_EQ(pool.stats().host_waits, 2U);
}

TEST_F(ClaimWait, AWaitOnTheHostEndsAsSoonAsALeaseOrAGraphReturnsItsSlot) {
  for (bool const is_captured : {false, true}) {
    block_pool pool = make_pool(1);
    std::optional<block_lease> held;
    owned_graph graph;
    if (is_captured) {
      graph = captured_use(pool);
    } else {
      held = pool.claim(one);
    }
    auto const begin = clock::now();
    std::jthread const returning = when_blocked(pool, [&] {
      held.reset();
      graph.reset();
    });
    EXPECT_TRUE(pool.try_claim_for(two, 60s).has_value());
    EXPECT_LT(clock::now() - begin, generous);
  }
}

TEST_F(ClaimWait, AClaimThatWaitsWhenThePoolIsClosedIsRefusedAndMakesNothing) {
  block_pool pool = make_pool(1);
  std::optional<block_lease> held = pool.claim(one);
  std::jthread const closing = when_blocked(pool, [&] {
    EXPECT_EQ(pool.close_for(0ns).size(), 1U);
    held.reset();
  });
  expect_error<usage_error>([&] { return pool.try_claim_for(two, 60s); }, {"closed"});
  EXPECT_EQ(made(), 1);
}

class CapturedWait : public ClaimWait {};

TEST_F(CapturedWait, AClaimThrowsWhenWorkThatACaptureCannotWaitForTakesTooLong) {
  for (cudaStreamCaptureMode const mode : all_capture_modes) {
    pinned_flag done;
    block_pool pool = make_pool(with(options(1), &pool_options::capture_wait_max, 200ms));
    {
      block_lease const held = pool.claim(two);
      must(launch_wait_flag(two, done.get()));
    }
    capture captured{one, mode};
    EXPECT_FALSE(pool.try_claim(one).has_value());
    EXPECT_THROW(static_cast<void>(pool.claim(one)), pool_exhausted);
    EXPECT_TRUE(captured.is_active());
    EXPECT_EQ(pool.stats().stream_waits, 0U);
    done.raise();
    EXPECT_TRUE(pool.try_claim_for(one, generous).has_value());
    EXPECT_TRUE(captured.is_active());
    must(captured.end());
    captured.graph().reset();
    end(pool);
  }
}

// The warm-up's work is on the very stream that is captured next.
TEST_F(CapturedWait, AClaimWaitsOnTheHostForTheWorkOfTheWarmUp) {
  for (bool const is_bounded : {false, true}) {
    pinned_flag done;
    block_pool pool = make_pool(1);
    {
      block_lease const held = pool.claim(one);
      must(launch_wait_flag(one, done.get()));
    }
    std::jthread const raising = when_blocked(pool, [&] { done.raise(); });
    capture captured{one, cudaStreamCaptureModeGlobal};
    EXPECT_TRUE((is_bounded ? pool.try_claim_for(one, 60s) : pool.claim(one)).has_value());
    must(captured.end());
    captured.graph().reset();
    end(pool);
  }
}

TEST_F(CapturedWait, AClaimDoesNotWaitForLeases) {
  block_pool pool = make_pool(1);
  block_lease const held = pool.claim(two);
  capture captured{one, cudaStreamCaptureModeGlobal};
  EXPECT_THROW(static_cast<void>(pool.claim(one)), pool_exhausted);
  EXPECT_EQ(pool.stats().host_waits, 0U);
}

TEST_F(CapturedWait, EndsWhenTheCaptureIsInvalidated) {
  block_pool pool = make_pool(1);
  block_lease const held = pool.claim(two);
  capture captured{one, cudaStreamCaptureModeGlobal};
  std::jthread const invalidating = when_blocked(pool, [&] { invalidate(one); });
  expect_error<usage_error>([&] { return pool.try_claim_for(one, generous); }, {"invalidated"});
}

}  // namespace
}  // namespace escrow::test
