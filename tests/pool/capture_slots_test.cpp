// How many slots a captured graph holds: as many as its widest moment, ordered by the graph's own
// edges.
#include <array>
#include <optional>

#include "pool_world.hpp"

namespace escrow::test {
namespace {

class CapturedSlots : public pool_world {};

TEST_F(CapturedSlots, CallsInSequenceHoldOneSlot) {
  block_pool pool = make_pool(8);
  capture captured{one, cudaStreamCaptureModeGlobal};
  for (int i = 0; i < 50; ++i) use(pool, one, i);
  EXPECT_EQ(pool.stats().in_graphs, 1U);
  EXPECT_EQ(pool.stats().edges_added, 0U);
  expect_right_results(captured);
}

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

}  // namespace
}  // namespace escrow::test
