// How many slots a captured graph holds: as many as its widest moment, ordered by the graph's own
// edges; and until when.
#include <array>
#include <optional>

#include "pool_world.hpp"
#include "deep.hpp"

namespace escrow::test {
namespace {

class CapturedSlots : public pool_world {};

TEST_F(CapturedSlots, LeasesThatOverlapHoldOneSlotEach) {
  block_pool pool = make_pool(8);
  capture captured{one, cudaStreamCaptureModeGlobal};
  for (int round = 0; round < 3; ++round) {
    block_lease first = pool.claim(one);
    block_lease second = pool.claim(one);
    fill(first, one, 1);
    fill(second, one, 2);
    check(first, one, 1, mismatches);
  }
  EXPECT_EQ(pool.stats().in_graphs, 2U);
  expect_right_results(captured);
}

TEST_F(CapturedSlots, AForkHoldsOneSlotABranchAndAfterTheJoinTheyServeAgain) {
  constexpr std::size_t width = 5;
  std::vector<owned_stream> branches(width - 1);
  for (owned_stream& branch : branches) branch = make_stream();
  block_pool pool = make_pool(16);
  capture captured{one, cudaStreamCaptureModeGlobal};
  for (int round = 0; round < 3; ++round) {
    must(launch_tiny(one));
    for (owned_stream const& branch : branches) order(one, branch);
    for (int call = 0; call < 3; ++call) use(pool, one, 100 + call);
    int value = 0;
    for (owned_stream const& branch : branches) {
      for (int call = 0; call < 3; ++call) use(pool, branch, ++value);
    }
    for (owned_stream const& branch : branches) order(branch, one);
    for (int call = 0; call < 3; ++call) use(pool, one, call);
    EXPECT_EQ(pool.stats().in_graphs, width);
  }
  EXPECT_EQ(made(), static_cast<int>(width));
  EXPECT_EQ(pool.stats().edges_added, 0U);
  expect_right_results(captured);
}

TEST_F(CapturedSlots, ABranchTakesItsOwnSlotAndLeavesTheOlderOneToTheOthers) {
  block_pool pool = make_pool(8);
  capture captured{one, cudaStreamCaptureModeGlobal};
  must(launch_tiny(one));
  std::optional<block_lease> of_origin = pool.claim(one);
  fill(*of_origin, one, 1);
  order(one, two);
  use(pool, two, 2);
  of_origin.reset();  // released last, but what the branch did comes after its work
  for (int round = 0; round < 3; ++round) {
    use(pool, two, 3);
    use(pool, one, 4);
  }
  EXPECT_EQ(pool.stats().in_graphs, 2U);
  EXPECT_EQ(pool.stats().edges_added, 0U);
  order(two, one);
  expect_right_results(captured);
}

TEST_F(CapturedSlots, AtTheLimitAnEdgeMakesOneBranchRunAfterTheOther) {
  block_pool pool = make_pool(1);
  capture captured{one, cudaStreamCaptureModeGlobal};
  must(launch_tiny(one));
  order(one, two);
  {
    block_lease held = pool.claim(two);
    fill(held, two, 1);
    hold_up(two);
    check(held, two, 1, mismatches);
  }
  {
    block_lease held = pool.claim(one);
    must(launch_add(one, started(), 1));
    fill(held, one, 2);
    check(held, one, 2, mismatches);
  }
  order(two, one);
  EXPECT_EQ(pool.stats().edges_added, 1U);
  EXPECT_EQ(pool.stats().in_graphs, 1U);
  must(captured.end());
  owned_exec const exec = instantiate(captured.graph());
  must(cudaGraphLaunch(exec, one));
  EXPECT_TRUE(stays_false([&] { return cells.load(1) != 0; }));
  flag.raise();
  sync(one);
  EXPECT_EQ(cells.load(1), 1);
}

TEST_F(CapturedSlots, AnEdgeIsAddedAlsoWhereTheBranchHasSomeOfTheNodesAlready) {
  block_pool pool = make_pool(1);
  capture captured{one, cudaStreamCaptureModeGlobal};
  must(launch_tiny(one));
  order(one, two);
  order(one, three);
  {
    // Used on two branches: its release comes after the nodes of both.
    block_lease held = pool.claim(two);
    held.record_stream(three);
    fill(held, two, 1);
    must(launch_tiny(three));
  }
  order(two, one);  // the origin has the one branch's node now, not the other's
  use(pool, one, 2);
  EXPECT_EQ(pool.stats().edges_added, 1U);
  order(three, one);
  expect_right_results(captured);
}

TEST_F(CapturedSlots, RecordStreamOrdersTheNextUseAfterABranch) {
  for (cudaStream_t const branch : {two.get(), cudaStreamPerThread}) {
    block_pool pool = make_pool(4);
    capture captured{one, cudaStreamCaptureModeRelaxed};
    must(launch_tiny(one));
    int used = -1;
    {
      block_lease held = pool.claim(one);
      used = held->number();
      order(one, branch);
      held.record_stream(branch);
      fill(held, branch, 1);
      check(held, branch, 1, mismatches);
    }
    EXPECT_NE(pool.claim(one)->number(), used) << "the branch may still use it";
    order(branch, one);
    block_lease const first = pool.claim(one);
    block_lease const second = pool.claim(one);
    EXPECT_EQ(pool.stats().slots, 2U) << "both serve again";
    expect_right_results(captured);
  }
}

TEST_F(CapturedSlots, ConcurrentCapturesHoldSlotsOfTheirOwn) {
  block_pool pool = make_pool(4);
  capture first{one, cudaStreamCaptureModeRelaxed};
  capture second{three, cudaStreamCaptureModeRelaxed};
  for (int round = 0; round < 2; ++round) {
    use(pool, one, 1);
    use(pool, three, 2);
  }
  EXPECT_EQ(pool.stats().in_graphs, 2U);
  expect_right_results(first);
  expect_right_results(second);
}

class LibraryCall : public pool_world {};

TEST_F(LibraryCall, GivesTheSameResultEagerAndCapturedInEveryMode) {
  block_pool pool = make_pool(4);
  use(pool, two, 1);
  for (cudaStreamCaptureMode const mode : all_modes) {
    capture captured{two, mode};
    use(pool, two, 2);
    EXPECT_TRUE(captured.is_active()) << testing::PrintToString(mode);
    must(captured.end());
    owned_exec const exec = instantiate(captured.graph());
    for (int i = 0; i < 5; ++i) must(cudaGraphLaunch(exec, two));
    use(pool, two, 3);
    sync(two);
  }
}

class CapturedLifetime : public pool_world {};

TEST_F(CapturedLifetime, ACaptureThatComesToNothingReturnsTheSlot) {
  struct row {
    char const* name;
    std::function<void(block_pool&)> run;
  };
  row const rows[] = {
      {"its graph is destroyed", [&](auto& pool) { static_cast<void>(captured_use(pool)); }},
      {"it is invalidated",
       [&](auto& pool) {
         capture captured{one, cudaStreamCaptureModeGlobal};
         use(pool, one);
         invalidate(one);
         EXPECT_EQ(captured.end(), cudaErrorStreamCaptureInvalidated);
       }},
      {"its stream is destroyed", [&](auto& pool) {
         owned_stream const destroyed = make_stream();
         must(cudaStreamBeginCapture(destroyed, cudaStreamCaptureModeGlobal));
         use(pool, destroyed);
       }}};
  for (row const& each : rows) {
    block_pool pool = make_pool(1);
    each.run(pool);
    EXPECT_TRUE(is_released(pool)) << each.name;
  }
}

TEST_F(CapturedLifetime, EagerWorkAfterTheCaptureOnItsLeaseIsWaitedFor) {
  for (bool const is_graph_first : {true, false}) {  // destroyed before the lease is released
    pinned_flag done;
    block_pool pool = make_pool(1);
    capture captured{one, cudaStreamCaptureModeGlobal};
    block_lease held = pool.claim(one);
    must(captured.end());
    must(launch_wait_flag(one, done.get()));
    fill(held, one, 4);
    if (is_graph_first) captured.graph().reset();
    EXPECT_TRUE(is_kept(pool));
    held.release();
    captured.graph().reset();
    ASSERT_TRUE(drained());
    block_lease next = pool.claim(two);
    check(next, two, 4, mismatches);
    EXPECT_TRUE(stays_busy(two));
    done.raise();
    sync(two);
    next.release();
    end(pool);
  }
}

// The worker may be taking it from the graph to its free list.
TEST_F(CapturedLifetime, ASlotIsFreeAtOnceWhenItsGraphIsDestroyed) {
  constexpr int rounds = is_sanitized ? 10'000 : 100'000;
  block_pool pool = make_pool(1);
  for (int i = 0; i < rounds; ++i) {
    {
      capture captured{one, cudaStreamCaptureModeThreadLocal};
      ASSERT_TRUE(pool.try_claim(one).has_value()) << "round " << i;
      must(captured.end());
    }
    ASSERT_TRUE(pool.try_claim(two).has_value()) << "round " << i;
    sync(two);
  }
}

}  // namespace
}  // namespace escrow::test
