// What is destroyed while a launch or an upload is in flight: an exec with conditional nodes waits
// for it, all else does not.
#include <gtest/gtest.h>

#include "build_graph.hpp"
#include "call_elsewhere.hpp"
#include "conditional_nodes.hpp"
#include "graph_nodes.hpp"
#include "handles.hpp"
#include "memory.hpp"

namespace escrow::test {
namespace {

class DestroyInFlight : public testing::Test {
 protected:
  // Waits for the flag, then adds 1 to the cell.
  void fill(cudaGraph_t into) {
    add_kernel(into, add_call(cell.data(), 1), add_kernel(into, wait_flag_call(flag.get())));
  }
  void fill_conditional() {
    fill(add_conditional_node(graph, make_condition(graph, 1), cudaGraphCondTypeIf).bodies[0]);
  }

  pinned_flag flag;
  pinned_ints cell;
  owned_stream stream = make_stream();
  owned_graph graph = make_graph();
};

TEST_F(DestroyInFlight, OfAnExecWithConditionalNodesBlocksUntilTheLaunchIsDone) {
  fill_conditional();
  owned_exec exec = instantiate(graph);
  must(cudaGraphLaunch(exec, stream));
  call_elsewhere const destroy([handle = exec.release()] { return cudaGraphExecDestroy(handle); });
  EXPECT_TRUE(destroy.stays_blocked());
  flag.raise();
  EXPECT_TRUE(destroy.succeeds_soon());
  EXPECT_EQ(cell.load(), 1);
}

TEST_F(DestroyInFlight, OfAnExecWithConditionalNodesBlocksUntilTheUploadIsDone) {
  owned_stream const other = make_stream();
  fill_conditional();
  owned_exec exec = instantiate(graph);
  must(launch_wait_flag(stream, flag.get()));
  must(cudaGraphUpload(exec, stream));
  must(cudaGraphUpload(exec, other));
  EXPECT_EQ(cudaStreamQuery(other), cudaErrorNotReady) << "it is after the one before";
  call_elsewhere const destroy([handle = exec.release()] { return cudaGraphExecDestroy(handle); });
  EXPECT_TRUE(destroy.stays_blocked());
  flag.raise();
  EXPECT_TRUE(destroy.succeeds_soon());
  EXPECT_EQ(cell.load(), 0);
}

TEST_F(DestroyInFlight, OfAnExecWithoutThemDoesNotBlock) {
  fill(graph);
  owned_exec exec = instantiate(graph);
  must(cudaGraphLaunch(exec, stream));
  {
    call_elsewhere const destroy(
        [handle = exec.release()] { return cudaGraphExecDestroy(handle); });
    EXPECT_TRUE(destroy.succeeds_soon());
    EXPECT_EQ(cell.load(), 0);
    flag.raise();
  }
  must(cudaStreamSynchronize(stream));
  EXPECT_EQ(cell.load(), 1);
}

TEST_F(DestroyInFlight, OfAnExecWithMemoryNodesDoesNotBlock) {
  auto params = alloc_params(sizeof(int));
  cudaGraphNode_t allocated = nullptr;
  must(cudaGraphAddMemAllocNode(&allocated, graph, nullptr, 0, &params));
  cudaGraphNode_t const waits = add_kernel(graph, wait_flag_call(flag.get()), allocated);
  cudaGraphNode_t freed = nullptr;
  must(cudaGraphAddMemFreeNode(&freed, graph, &waits, 1, params.dptr));
  owned_exec exec = instantiate(graph);
  must(cudaGraphLaunch(exec, stream));
  {
    call_elsewhere const destroy(
        [handle = exec.release()] { return cudaGraphExecDestroy(handle); });
    EXPECT_TRUE(destroy.succeeds_soon());
    EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady);
    flag.raise();
  }
  must(cudaStreamSynchronize(stream));
}

TEST_F(DestroyInFlight, OfAGraphWithConditionalNodesDoesNotBlock) {
  fill_conditional();
  owned_exec const exec = instantiate(graph);
  must(cudaGraphLaunch(exec, stream));
  {
    call_elsewhere const destroy([handle = graph.release()] { return cudaGraphDestroy(handle); });
    EXPECT_TRUE(destroy.succeeds_soon());
    EXPECT_EQ(cell.load(), 0);
    flag.raise();
  }
  must(cudaStreamSynchronize(stream));
  EXPECT_EQ(cell.load(), 1);
}

}  // namespace
}  // namespace escrow::test
