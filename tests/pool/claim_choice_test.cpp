// Which slot a claim gets: its stream's own, one whose work is done, a new one, the oldest. No idle
// slot is overlooked, and in steady state nothing is allocated.
#include <optional>

#include "allocation_watch.hpp"
#include "pool_world.hpp"

namespace escrow::test {
namespace {

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

TEST_F(ClaimChoice, ABusySlotMakesThePoolGrow) {
  block_pool pool = make_pool(4);
  use_behind_flag(pool, one);
  EXPECT_EQ(pool.claim(two)->number(), 1);
  EXPECT_EQ(pool.stats().stream_waits, 0U);
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

TEST_F(NoSlotOverlooked, BehindABusyOneOfTheSameStream) {
  for (bool const is_captured : {false, true}) {
    pinned_flag done;
    block_pool pool = make_pool(2);
    {
      block_lease first = pool.claim(one);
      block_lease second = pool.claim(one);
      first.record_stream(two);
      must(launch_wait_flag(two, done.get()));
      first.release();
    }
    sync(one);
    std::optional<capture> captured;
    if (is_captured) captured.emplace(three, cudaStreamCaptureModeGlobal);
    EXPECT_TRUE(pool.try_claim(three).has_value());
    captured.reset();
    EXPECT_EQ(pool.stats().stream_waits, 0U);
    EXPECT_TRUE(is_idle(three));
    done.raise();
    sync(two);
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
  if (!is_simulated()) GTEST_SKIP() << "CUDA crashes";
  errors_expected = true;
  lost = 1;
  block_pool pool = make_pool(1);
  {
    block_lease held = pool.claim(one);
    owned_stream destroyed = make_stream();
    held.record_stream(destroyed);
    destroyed.reset();
  }
  EXPECT_EQ(errors->size(), 1U) << errors->all();
  EXPECT_EQ(worker->stats().leaked, 1U);
  EXPECT_TRUE(pool.try_claim(one).has_value()) << "the pool makes another in its place";
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
