// How many slots a captured graph holds: as many as its widest moment, ordered by the graph's own
// edges.
#include "capture_fixture.hpp"

namespace escrow::test {
namespace {

class CapturedSlots : public captured_pool_test {};

TEST_F(CapturedSlots, CallsInSequenceHoldOneSlot) {
  owned_stream const stream = make_stream();
  block_pool pool = make_pool(8);
  capture captured{stream, cudaStreamCaptureModeGlobal};
  for (int i = 0; i < 50; ++i) library_work(pool, stream, i, mismatches);
  EXPECT_EQ(pool.stats().in_graphs, 1u);
  EXPECT_EQ(made(), 1);
  EXPECT_EQ(pool.stats().edges_added, 0u);
  expect_right_results(captured, stream);
}

TEST_F(CapturedSlots, LeasesThatOverlapHoldOneSlotEach) {
  owned_stream const stream = make_stream();
  block_pool pool = make_pool(8);
  capture captured{stream, cudaStreamCaptureModeGlobal};
  for (int round = 0; round < 3; ++round) {
    block_lease first = pool.claim(stream);
    block_lease second = pool.claim(stream);
    EXPECT_NE(first->number(), second->number());
    fill(first, stream, 1);
    fill(second, stream, 2);
    check(first, stream, 1, mismatches);
  }
  EXPECT_EQ(pool.stats().in_graphs, 2u);
  expect_right_results(captured, stream);
}

TEST_F(CapturedSlots, AForkOfWidthWHoldsWAndAfterTheJoinTheyServeAgain) {
  constexpr std::size_t width = 5;
  owned_stream const stream = make_stream();
  std::vector<owned_stream> branches(width - 1);
  for (owned_stream& branch : branches) branch = make_stream();
  block_pool pool = make_pool(16);
  capture captured{stream, cudaStreamCaptureModeGlobal};
  for (int round = 0; round < 3; ++round) {
    must(launch_tiny(stream));
    for (owned_stream const& branch : branches) order(stream, branch);
    for (int call = 0; call < 3; ++call) library_work(pool, stream, 100 + call, mismatches);
    int value = 0;
    for (owned_stream const& branch : branches) {
      for (int call = 0; call < 3; ++call) library_work(pool, branch, ++value, mismatches);
    }
    for (owned_stream const& branch : branches) order(branch, stream);
    EXPECT_EQ(pool.stats().in_graphs, width);
  }
  for (int call = 0; call < 3; ++call) library_work(pool, stream, call, mismatches);
  EXPECT_EQ(pool.stats().in_graphs, width);
  EXPECT_EQ(made(), static_cast<int>(width));
  EXPECT_EQ(pool.stats().edges_added, 0u);
  expect_right_results(captured, stream);
}

TEST_F(CapturedSlots, ABranchDoesNotGetASlotThatAnotherBranchHasJustReleased) {
  owned_stream const stream = make_stream();
  owned_stream const branch = make_stream();
  block_pool pool = make_pool(4);
  capture captured{stream, cudaStreamCaptureModeGlobal};
  must(launch_tiny(stream));
  order(stream, branch);
  int of_branch = -1;
  {
    block_lease held = pool.claim(branch);
    of_branch = held->number();
    fill(held, branch, 1);
  }
  EXPECT_NE(pool.claim(stream)->number(), of_branch);
  order(branch, stream);
  expect_right_results(captured, stream);
}

TEST_F(CapturedSlots, ABranchTakesItsOwnSlotAndLeavesTheOlderOneToTheOthers) {
  owned_stream const stream = make_stream();
  owned_stream const branch = make_stream();
  block_pool pool = make_pool(8);
  capture captured{stream, cudaStreamCaptureModeGlobal};
  must(launch_tiny(stream));
  std::optional<block_lease> of_origin = pool.claim(stream);
  fill(*of_origin, stream, 1);
  order(stream, branch);
  library_work(pool, branch, 2, mismatches);
  of_origin.reset();  // released last, but what the branch did comes after its work
  for (int round = 0; round < 3; ++round) {
    library_work(pool, branch, 3, mismatches);
    library_work(pool, stream, 4, mismatches);
  }
  EXPECT_EQ(pool.stats().in_graphs, 2u);
  EXPECT_EQ(pool.stats().edges_added, 0u);
  order(branch, stream);
  expect_right_results(captured, stream);
}

TEST_F(CapturedSlots, AtTheLimitAnEdgeMakesOneBranchRunAfterTheOther) {
  pinned_flag flag;
  pinned_ints ran;
  owned_stream const stream = make_stream();
  owned_stream const branch = make_stream();
  block_pool pool = make_pool(1);
  capture captured{stream, cudaStreamCaptureModeGlobal};
  must(launch_tiny(stream));
  order(stream, branch);
  {
    block_lease held = pool.claim(branch);
    fill(held, branch, 1);
    must(launch_wait_flag(branch, flag.get()));
    check(held, branch, 1, mismatches);
  }
  {
    block_lease held = pool.claim(stream);
    must(launch_add(stream, ran.data(), 1));
    fill(held, stream, 2);
    check(held, stream, 2, mismatches);
  }
  order(branch, stream);
  EXPECT_EQ(pool.stats().edges_added, 1u);
  EXPECT_EQ(pool.stats().in_graphs, 1u);
  must(captured.end());
  owned_exec const exec = instantiate(captured.graph());
  must(cudaGraphLaunch(exec, stream));
  EXPECT_TRUE(stays_false([&] { return ran.load() != 0; }));
  flag.raise();
  sync(stream);
  EXPECT_EQ(ran.load(), 1);
  EXPECT_EQ(mismatches.load(), 0);
}

TEST_F(CapturedSlots, AnEdgeIsAddedAlsoWhereTheBranchHasSomeOfTheNodesAlready) {
  owned_stream const stream = make_stream();
  owned_stream const first = make_stream();
  owned_stream const second = make_stream();
  block_pool pool = make_pool(1);
  capture captured{stream, cudaStreamCaptureModeGlobal};
  must(launch_tiny(stream));
  order(stream, first);
  order(stream, second);
  {
    // Used on two branches: its release comes after the nodes of both.
    block_lease held = pool.claim(first);
    held.record_stream(second);
    fill(held, first, 1);
    must(launch_tiny(second));
  }
  order(first, stream);  // the origin has the one branch's node now, not the other's
  library_work(pool, stream, 2, mismatches);
  EXPECT_EQ(pool.stats().edges_added, 1u);
  order(second, stream);
  expect_right_results(captured, stream);
}

TEST_F(CapturedSlots, AlsoUsedOnABranchOrdersTheNextUseAfterIt) {
  owned_stream const stream = make_stream();
  owned_stream const branch = make_stream();
  block_pool pool = make_pool(4);
  capture captured{stream, cudaStreamCaptureModeGlobal};
  must(launch_tiny(stream));
  int first = -1;
  {
    block_lease held = pool.claim(stream);
    first = held->number();
    order(stream, branch);
    held.record_stream(branch);
    fill(held, branch, 1);
    check(held, branch, 1, mismatches);
  }
  EXPECT_NE(pool.claim(stream)->number(), first);  // the branch may still use it
  order(branch, stream);
  {
    block_lease const one = pool.claim(stream);
    block_lease const two = pool.claim(stream);
    EXPECT_EQ(one->number() + two->number(), 1);  // both serve again
  }
  expect_right_results(captured, stream);
}

TEST_F(CapturedSlots, TwoCapturesAtOnceHoldTheirOwnSlots) {
  owned_stream const one = make_stream();
  owned_stream const other = make_stream();
  block_pool pool = make_pool(4);
  capture first{one, cudaStreamCaptureModeRelaxed};
  capture second{other, cudaStreamCaptureModeRelaxed};
  library_work(pool, one, 1, mismatches);
  library_work(pool, other, 2, mismatches);
  library_work(pool, one, 3, mismatches);
  library_work(pool, other, 4, mismatches);
  EXPECT_EQ(pool.stats().in_graphs, 2u);
  expect_right_results(first, one);
  expect_right_results(second, other);
}

}  // namespace
}  // namespace escrow::test
