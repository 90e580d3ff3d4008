// Captures in which something runs beside a kernel (programmatic dependent launch): it does not get
// the slots that the kernel uses.
#include "early_edges.hpp"

#include "capture_fixture.hpp"

namespace escrow::test {
namespace {

class EarlyEdges : public captured_pool_test,
                   public testing::WithParamInterface<cudaGraphEdgeData> {
 protected:
  // A slot is claimed, used by a kernel and released; `beside` is forked off behind the beginning
  // of that kernel.
  void fork(block_pool& pool, cudaStream_t stream, cudaStream_t beside) {
    {
      block_lease held = pool.claim(stream);
      used = held->number();
      fill(held, stream, 1);
    }
    order(stream, beside);
    wait_early(beside, GetParam());
  }

  int used = -1;
};

TEST_P(EarlyEdges, WhatRunsBesideAKernelGetsAnotherSlot) {
  owned_stream const stream = make_stream();
  owned_stream const beside = make_stream();
  block_pool pool = make_pool(2);
  capture captured{stream, cudaStreamCaptureModeGlobal};
  fork(pool, stream, beside);
  {
    block_lease held = pool.claim(beside);
    EXPECT_NE(held->number(), used);
    fill(held, beside, 2);
  }
  order(beside, stream);
  EXPECT_EQ(captured.end(), cudaSuccess);
  EXPECT_EQ(pool.stats().edges_added, 0U);
}

TEST_P(EarlyEdges, NorDoesWhatComesAfterThat) {
  owned_stream const stream = make_stream();
  owned_stream const beside = make_stream();
  block_pool pool = make_pool(2);
  capture captured{stream, cudaStreamCaptureModeGlobal};
  fork(pool, stream, beside);
  must(launch_tiny(beside));
  must(launch_tiny(beside));
  EXPECT_NE(pool.claim(beside)->number(), used);
  order(beside, stream);
  EXPECT_EQ(captured.end(), cudaSuccess);
}

TEST_P(EarlyEdges, WhatComesAfterTheKernelTooGetsItsSlot) {
  owned_stream const stream = make_stream();
  owned_stream const beside = make_stream();
  block_pool pool = make_pool(2);
  capture captured{stream, cudaStreamCaptureModeGlobal};
  fork(pool, stream, beside);
  must(launch_tiny(beside));
  order(beside, stream);
  EXPECT_EQ(pool.claim(stream)->number(), used);
  EXPECT_EQ(captured.end(), cudaSuccess);
}

TEST_P(EarlyEdges, WhereThereIsNoOtherSlotTheClaimWaitsForTheKernelsEnd) {
  owned_stream const stream = make_stream();
  owned_stream const beside = make_stream();
  block_pool pool = make_pool(1);
  capture captured{stream, cudaStreamCaptureModeGlobal};
  fork(pool, stream, beside);
  {
    block_lease held = pool.claim(beside);
    EXPECT_EQ(held->number(), used);
    EXPECT_EQ(pool.stats().edges_added, 1U);
    for (cudaGraphEdgeData const& edge : frontier_in(beside).edges) {
      EXPECT_TRUE(is_same(edge, full_edge));
    }
    check(held, beside, 1, mismatches);
  }
  order(beside, stream);
  ASSERT_EQ(captured.end(), cudaSuccess);
  owned_exec const exec = instantiate(captured.graph());
  for (int i = 0; i < 20; ++i) must(cudaGraphLaunch(exec, stream));
  sync(stream);
  EXPECT_EQ(mismatches.load(), 0);
}

INSTANTIATE_TEST_SUITE_P(All, EarlyEdges, testing::ValuesIn(early_edges));

}  // namespace
}  // namespace escrow::test
