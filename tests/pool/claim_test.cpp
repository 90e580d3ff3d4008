// SPDX-License-Identifier: Apache-2.0
// Which slot a claim gets: its stream's own, one whose work is done, a new one, the oldest. When
// every slot is out or busy, it waits in the stream, on the host within a bound, or not at all. No
// idle slot is overlooked, and in steady state nothing is allocated.
#include "allocation_watch.hpp"
#include "pool_world.hpp"

namespace escrow::test {
namespace {

using namespace std::chrono_literals;
using clock = std::chrono::steady_clock;

class ClaimChoice : public pool_world {};

TEST_F(ClaimChoice, TheSlotReleasedLastOnTheStreamIsTakenWithoutAWait) {
  block_pool pool = make_pool(4);
  block_lease first = pool.claim(one);
  block_lease second = pool.claim(one);
  hold_up(one);
  second.release();
  first.release();
  for (int i = 0; i < 10; ++i) EXPECT_EQ(pool.claim(one)->number(), 0);
  EXPECT_FALSE(is_idle(one));
  EXPECT_EQ(made(), 2);
  EXPECT_EQ(pool.stats().stream_waits, 0U);
}

TEST_F(ClaimChoice, ASlotWhoseWorkIsDoneServesAnotherStreamWithoutAWait) {
  block_pool pool = make_pool(4);
  use(pool, one);
  sync(one);
  EXPECT_EQ(pool.claim(two)->number(), 0);
  EXPECT_EQ(made(), 1);
  EXPECT_EQ(pool.stats().stream_waits, 0U);
}

TEST_F(ClaimChoice, ThePoolGrowsUpToItsLimitAndThenHandsOutTheOldestRelease) {
  block_pool pool = make_pool(3);
  std::vector<block_lease> leases;
  for (cudaStream_t const stream : {one.get(), two.get(), three.get()}) {
    leases.push_back(pool.claim(stream));
    hold_up(stream);
  }
  for (std::size_t const i : {1U, 2U, 0U}) leases[i].release();
  std::vector<block_lease> again;
  for (int const expected : {1, 2, 0}) {
    again.push_back(pool.claim(asking));
    EXPECT_EQ(again.back()->number(), expected);
  }
  EXPECT_EQ(pool.stats().grown, 3U);
  EXPECT_EQ(pool.stats().slots, 3U);
  EXPECT_EQ(pool.stats().stream_waits, 3U);
}

class NoSlotOverlooked : public pool_world {};

TEST_F(NoSlotOverlooked, BehindManyBusyStreams) {
  // A GPU has few hardware queues: a stream that shares one with a blocked stream waits, too.
  std::size_t const busy = is_simulated() ? 48 : 3;
  for (std::size_t const idle : {std::size_t{0}, busy / 2, busy - 1}) {
    pinned_flag done;
    int const before = made();
    std::vector<owned_stream> streams(busy);
    block_pool pool = make_pool(busy);
    std::vector<block_lease> leases;
    for (owned_stream& stream : streams) {
      stream = make_stream();
      leases.push_back(pool.claim(stream));
    }
    for (std::size_t i = 0; i < busy; ++i) {
      if (i != idle) must(launch_wait_flag(streams[i], done.get()));
      leases[i].release();
    }
    sync(streams[idle]);
    EXPECT_EQ(pool.claim(asking)->number(), before + static_cast<int>(idle));
    EXPECT_EQ(pool.stats().stream_waits, 0U);
    {
      capture captured{one, cudaStreamCaptureModeGlobal};
      EXPECT_TRUE(pool.try_claim(one).has_value());
    }
    done.raise();
    for (owned_stream const& stream : streams) sync(stream);
    end(pool);
  }
}

TEST_F(NoSlotOverlooked, BehindManyBusyStreamsIfThereIsNoRoomForAnother) {
  constexpr std::size_t bytes = 1024;
  std::size_t const busy = is_simulated() ? 48 : 3;
  for (std::size_t const idle : {std::size_t{0}, busy / 2, busy - 1}) {
    pinned_flag done;
    scratch_pool pool(options(2 * busy), {.bytes_max = busy * bytes});
    std::vector<owned_stream> streams(busy);
    std::vector<lease<device_block>> leases;
    for (owned_stream& stream : streams) {
      stream = make_stream();
      leases.push_back(pool.claim(stream, bytes));
    }
    void const* const expected = leases[idle]->data();
    for (std::size_t i = 0; i < busy; ++i) {
      if (i != idle) must(launch_wait_flag(streams[i], done.get()));
      leases[i].release();
    }
    sync(streams[idle]);
    EXPECT_EQ(pool.claim(asking, bytes)->data(), expected);
    done.raise();
    for (owned_stream const& stream : streams) sync(stream);
    leases.clear();
    end(pool);
  }
}

TEST_F(NoSlotOverlooked, ThatAGraphReturnsBehindABusyOneOfItsStream) {
  block_pool pool = make_pool(2);
  owned_graph graph;
  {
    capture captured{one, cudaStreamCaptureModeRelaxed};
    block_lease first = pool.claim(one);
    must(captured.end());
    graph = std::move(captured.graph());
    block_lease const second = pool.claim(one);
    first.release();
    sync(one);
    hold_up(one);
  }
  graph.reset();
  ASSERT_TRUE(drained());
  capture captured{two, cudaStreamCaptureModeGlobal};
  EXPECT_TRUE(pool.try_claim(two).has_value());
}

TEST_F(NoSlotOverlooked, AfterAStreamGivenToRecordStreamWasDestroyedTooEarly) {
  if (!is_simulated()) GTEST_SKIP() << "CUDA crashes unless another stream has the handle";
  errors_expected = true;
  lost = 1;
  block_pool pool = make_pool(1);
  owned_stream other;
  {
    block_lease held = pool.claim(one);
    owned_stream destroyed = make_stream();
    held.record_stream(destroyed);
    destroyed.reset();
    other = make_stream();  // which has its handle
  }
  EXPECT_EQ(errors->size(), 1U) << errors->all();
  EXPECT_EQ(worker->stats().leaked, 1U);
  EXPECT_TRUE(pool.try_claim(one).has_value()) << "the pool makes another in its place";
}

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
      {"capture " + std::to_string(id), "holds 1", "claim_test.cpp:" + std::to_string(line)});
}

TEST_F(ClaimWait, AClaimBlocksTheHostForAsLongAsItMayAndNotMuchLonger) {
  block_pool pool = make_pool(waiting(50ms));
  block_lease const held = pool.claim(one);
  for (bool const is_try : {false, true}) {
    auto const begin = clock::now();
    if (is_try) {
      EXPECT_FALSE(pool.try_claim_for(one, 50ms).has_value());
    } else {
      EXPECT_THROW(static_cast<void>(pool.claim(one)), pool_exhausted);
    }
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

class SteadyState : public pool_world {};

TEST_F(SteadyState, ClaimsAndReleasesAllocateNothing) {
  block_pool pool = make_pool(1);
  struct cycle {
    char const* name;
    std::function<void(int)> run;
  };
  for (cycle const& each :
       {cycle{"on one stream", [&](int) { pool.claim(one).release(); }},
        cycle{"between streams", [&](int i) { pool.claim(i % 2 == 0 ? one : two).release(); }},
        cycle{"with a further stream", [&](int) {
                block_lease held = pool.claim(one);
                held.record_stream(two);
              }}}) {
    for (int i = 0; i < 1000; ++i) each.run(i);
    sync_all();
    allocation_watch const watch;
    for (int i = 0; i < 20'000; ++i) {  // a container that grows has done so many times
      each.run(i);
      if (i % 256 == 0) sync_all();
    }
    EXPECT_EQ(watch.count(), 0U) << each.name;
  }
  EXPECT_EQ(made(), 1);
}

}  // namespace
}  // namespace escrow::test
