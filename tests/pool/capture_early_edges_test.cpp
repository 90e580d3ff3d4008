// Captures in which something runs beside a kernel (programmatic dependent launch): it does not get
// the slots that the kernel uses.
#include "early_edges.hpp"

#include "capture_fixture.hpp"

namespace escrow::test {
namespace {

class CapturedEarlyEdges : public captured_pool_test,
                           public testing::WithParamInterface<cudaGraphEdgeData> {
 protected:
  // A slot is claimed, used and released. What comes next on `at` is behind the beginning of its
  // last kernel.
  void use_and_fork(block_pool& pool, cudaStream_t at) {
    {
      block_lease held = pool.claim(stream);
      used = held->number();
      fill(held, stream, 1);
      check(held, stream, 1, mismatches);
    }
    order(stream, at);
    wait_early(at, GetParam());
  }

  // Fills what a claim on `at` gives with something else; which one it was.
  int use_another(block_pool& pool, cudaStream_t at) {
    block_lease held = pool.claim(at);
    fill(held, at, 2);
    check(held, at, 2, mismatches);
    return held->number();
  }

  owned_stream const stream = make_stream();
  owned_stream const beside = make_stream();
  int used = -1;
};

TEST_P(CapturedEarlyEdges, WhatRunsBesideAKernelGetsAnotherSlot) {
  block_pool pool = make_pool(2);
  capture captured{stream, cudaStreamCaptureModeGlobal};
  use_and_fork(pool, beside);
  EXPECT_NE(use_another(pool, beside), used);
  order(beside, stream);
  expect_right_results(captured, stream);
  EXPECT_EQ(pool.stats().edges_added, 0U);
}

TEST_P(CapturedEarlyEdges, SoDoesWhatComesAfterThatUnlessItWaitsForTheTrigger) {
  block_pool pool = make_pool(2);
  capture captured{stream, cudaStreamCaptureModeGlobal};
  use_and_fork(pool, beside);
  must(launch_tiny(beside));
  must(launch_tiny(beside));
  EXPECT_EQ(use_another(pool, beside) == used, is_same(GetParam(), trigger_edge));
  order(beside, stream);
  expect_right_results(captured, stream);
}

TEST_P(CapturedEarlyEdges, SoDoesWhatComesAfterAnythingButAKernel) {
  device_ints const memory{1};
  block_pool pool = make_pool(2);
  capture captured{stream, cudaStreamCaptureModeGlobal};
  use_and_fork(pool, beside);
  must(cudaMemsetAsync(memory.data(), 0, sizeof(int), beside));
  EXPECT_NE(use_another(pool, beside), used);
  order(beside, stream);
  expect_right_results(captured, stream);
}

TEST_P(CapturedEarlyEdges, WhatComesAfterTheKernelTooGetsItsSlot) {
  block_pool pool = make_pool(2);
  capture captured{stream, cudaStreamCaptureModeGlobal};
  use_and_fork(pool, beside);
  must(launch_tiny(beside));
  order(beside, stream);
  EXPECT_EQ(use_another(pool, stream), used);
  expect_right_results(captured, stream);
}

TEST_P(CapturedEarlyEdges, WhereThereIsNoOtherSlotTheClaimWaitsForTheKernelsEnd) {
  block_pool pool = make_pool(1);
  capture captured{stream, cudaStreamCaptureModeGlobal};
  use_and_fork(pool, beside);
  {
    block_lease const held = pool.claim(beside);
    EXPECT_EQ(pool.stats().edges_added, 1U);
    EXPECT_EQ(frontier_in(beside).nodes.size(), 1U);
    EXPECT_TRUE(is_same(frontier_in(beside).edges.at(0), full_edge));
  }
  EXPECT_EQ(use_another(pool, beside), used);
  order(beside, stream);
  expect_right_results(captured, stream);
}

TEST_P(CapturedEarlyEdges, WhatIsReleasedBesideAKernelIsInUseUntilThatEnds) {
  block_pool pool = make_pool(2);
  capture captured{stream, cudaStreamCaptureModeGlobal};
  order(stream, beside);
  {
    block_lease held = pool.claim(stream);
    used = held->number();
    fill(held, stream, 1);
    check(held, stream, 1, mismatches);
    wait_early(stream, GetParam());
  }
  EXPECT_NE(use_another(pool, beside), used) << "the other branch has nothing in front";
  must(launch_tiny(stream));
  order(beside, stream);
  expect_right_results(captured, stream);
}

TEST_P(CapturedEarlyEdges, TheSameOfAStreamThatUsesItToo) {
  block_pool pool = make_pool(2);
  owned_stream const third = make_stream();
  capture captured{stream, cudaStreamCaptureModeGlobal};
  {
    block_lease held = pool.claim(stream);
    used = held->number();
    fill(held, stream, 1);
    order(stream, beside);
    order(stream, third);
    held.record_stream(beside);
    check(held, beside, 1, mismatches);
    wait_early(beside, GetParam());
  }
  EXPECT_NE(use_another(pool, third), used) << "it does not wait for the check";
  must(launch_tiny(beside));
  order(beside, stream);
  order(third, stream);
  expect_right_results(captured, stream);
}

TEST_P(CapturedEarlyEdges, IsSeenAmongManyEdges) {
  constexpr int forks = 20;
  block_pool pool = make_pool(2);
  owned_stream const early = make_stream();
  capture captured{stream, cudaStreamCaptureModeGlobal};
  must(launch_tiny(stream));
  order(stream, beside);
  for (int i = 0; i < forks; ++i) {
    owned_stream const fork = make_stream();
    order(stream, fork);
    must(launch_tiny(fork));
    order(fork, beside);
  }
  use_and_fork(pool, early);
  order(early, beside);
  must(launch_tiny(beside));
  EXPECT_EQ(use_another(pool, beside) == used, is_same(GetParam(), trigger_edge));
  order(early, stream);
  order(beside, stream);
  expect_right_results(captured, stream);
}

INSTANTIATE_TEST_SUITE_P(All, CapturedEarlyEdges, testing::ValuesIn(early_edges));

class CapturedChain : public captured_pool_test {};

TEST_F(CapturedChain, OfProgrammaticLaunchesNeedsOneSlot) {
  owned_stream const stream = make_stream();
  block_pool pool = make_pool(2);
  capture captured{stream, cudaStreamCaptureModeGlobal};
  for (int i = 0; i < 10; ++i) {
    library_work(pool, stream, i, mismatches);
    for (int k = 0; k < 3; ++k) must(launch_programmatically(stream));
  }
  expect_right_results(captured, stream);
  EXPECT_EQ(pool.stats().slots, 1U);
  EXPECT_EQ(pool.stats().edges_added, 0U);
}

}  // namespace
}  // namespace escrow::test
