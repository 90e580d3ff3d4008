// Alloc and free nodes: where memory is, what a launch needs, and what such graphs do not allow.
#include <gtest/gtest.h>

#include <vector>

#include "build_graph.hpp"
#include "conditional_nodes.hpp"
#include "graph_nodes.hpp"
#include "handles.hpp"
#include "memory.hpp"

namespace escrow::test {
namespace {

struct allocation {
  cudaGraphNode_t node = nullptr;
  int* data = nullptr;
};

allocation add_alloc(cudaGraph_t graph, std::size_t ints = 4) {
  auto params = alloc_params(ints * sizeof(int));
  allocation result;
  must(cudaGraphAddMemAllocNode(&result.node, graph, nullptr, 0, &params));
  result.data = static_cast<int*>(params.dptr);
  return result;
}

cudaError_t try_free_node(cudaGraph_t graph, void* address, cudaGraphNode_t behind = nullptr) {
  cudaGraphNode_t node = nullptr;
  return tried(cudaGraphAddMemFreeNode(&node, graph, behind == nullptr ? nullptr : &behind,
                                       behind == nullptr ? 0 : 1, address));
}

class GraphMemory : public testing::Test {
 protected:
  // Allocates, fills with 3, copies to `out`; returns the last node.
  cudaGraphNode_t use(allocation const& memory) {
    auto* const filled = add_kernel(graph, fill_call(memory.data, 4, 3), memory.node);
    return add_kernel(graph, copy_call(out.data(), memory.data, 4), filled);
  }

  pinned_ints out{4};
  owned_stream stream = make_stream();
  owned_graph graph = make_graph();
};

TEST_F(GraphMemory, IsThereBetweenTheAllocNodeAndTheFreeNodeAtEachLaunch) {
  auto const memory = add_alloc(graph);
  ASSERT_NE(memory.data, nullptr);
  ASSERT_EQ(try_free_node(graph, memory.data, use(memory)), cudaSuccess);
  owned_exec const exec = instantiate(graph);
  run(exec, stream);
  out.store(3, 0);
  run(exec, stream);
  EXPECT_EQ(out.load(3), 3);
}

TEST_F(GraphMemory, IsReadBackWithItsAddress) {
  auto const memory = add_alloc(graph, 8);
  cudaGraphNode_t freed = nullptr;
  must(cudaGraphAddMemFreeNode(&freed, graph, &memory.node, 1, memory.data));
  cudaMemAllocNodeParams params{};
  must(cudaGraphMemAllocNodeGetParams(memory.node, &params));
  EXPECT_EQ(params.dptr, memory.data);
  EXPECT_GE(params.bytesize, 8 * sizeof(int));
  EXPECT_EQ(params.poolProps.location.type, cudaMemLocationTypeDevice);
  void* address = nullptr;
  must(cudaGraphMemFreeNodeGetParams(freed, &address));
  EXPECT_EQ(address, memory.data);
}

TEST_F(GraphMemory, OfTheCallForAllKindsIsTheSame) {
  auto p = params_of(cudaGraphNodeTypeMemAlloc);
  auto const wanted = alloc_params(4 * sizeof(int));
  p.alloc.poolProps = wanted.poolProps;
  p.alloc.bytesize = wanted.bytesize;
  allocation memory;
  must(cudaGraphAddNode(&memory.node, graph, nullptr, nullptr, 0, &p));
  memory.data = static_cast<int*>(p.alloc.dptr);
  ASSERT_NE(memory.data, nullptr);
  auto* const last = use(memory);
  p = params_of(cudaGraphNodeTypeMemFree);
  p.free.dptr = memory.data;
  add_any(graph, p, last);
  run(graph, stream);
  EXPECT_EQ(out.load(2), 3);
}

TEST_F(GraphMemory, LeftByALaunchKeepsTheNextFromRunningUntilItIsFreed) {
  auto const memory = add_alloc(graph);
  use(memory);
  owned_exec const exec = instantiate(graph);
  run(exec, stream);
  EXPECT_EQ(tried(cudaGraphLaunch(exec, stream)), cudaErrorInvalidValue);
  // It is there for work behind the launch.
  must(launch_fill(stream, memory.data, 4, 5));
  must(launch_copy(stream, out.data(), memory.data, 4));
  EXPECT_EQ(cudaFreeAsync(memory.data, stream), cudaSuccess);
  EXPECT_EQ(cudaGraphLaunch(exec, stream), cudaSuccess);
  must(cudaStreamSynchronize(stream));
  EXPECT_EQ(out.load(), 3);
  EXPECT_EQ(cudaFree(memory.data), cudaSuccess);
  EXPECT_NE(tried(cudaFree(memory.data)), cudaSuccess);
}

TEST_F(GraphMemory, LeftByALaunchIsFreedByTheNextIfTheExecWasMadeSo) {
  auto const memory = add_alloc(graph);
  use(memory);
  owned_exec exec;
  must(cudaGraphInstantiate(exec.out(), graph, cudaGraphInstantiateFlagAutoFreeOnLaunch));
  run(exec, stream);
  EXPECT_EQ(cudaGraphLaunch(exec, stream), cudaSuccess);
  must(cudaStreamSynchronize(stream));
  EXPECT_EQ(cudaFree(memory.data), cudaSuccess);
}

TEST_F(GraphMemory, OfOneGraphCanBeFreedByAnother) {
  auto const memory = add_alloc(graph);
  use(memory);
  owned_graph const freeing = make_graph();
  ASSERT_EQ(try_free_node(freeing, memory.data), cudaSuccess);
  EXPECT_EQ(try_free_node(graph, memory.data), cudaErrorInvalidValue);
  owned_exec const first = instantiate(graph);
  owned_exec const second = instantiate(freeing);
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(cudaGraphLaunch(first, stream), cudaSuccess);
    ASSERT_EQ(cudaGraphLaunch(second, stream), cudaSuccess);
  }
  must(cudaStreamSynchronize(stream));
}

TEST_F(GraphMemory, IsFreedOnceInItsGraphAndThenNowhereElse) {
  auto const memory = add_alloc(graph);
  ASSERT_EQ(try_free_node(graph, memory.data, memory.node), cudaSuccess);
  EXPECT_EQ(try_free_node(graph, memory.data, memory.node), cudaErrorInvalidValue);
  owned_graph const other = make_graph();
  EXPECT_EQ(try_free_node(other, memory.data), cudaErrorInvalidValue);
}

TEST_F(GraphMemory, OnlyWhatANodeAllocatedCanBeFreedByANode) {
  device_ints const plain{4};
  EXPECT_EQ(try_free_node(graph, plain.data()), cudaErrorInvalidValue);
  EXPECT_EQ(try_free_node(graph, nullptr), cudaErrorInvalidValue);
}

TEST_F(GraphMemory, NodesOfNoBytesAreRefused) {
  auto params = alloc_params(0);
  cudaGraphNode_t node = nullptr;
  EXPECT_NE(tried(cudaGraphAddMemAllocNode(&node, graph, nullptr, 0, &params)), cudaSuccess);
}

TEST_F(GraphMemory, KeepsAGraphFromBeingClonedOrCopiedIntoAChildNode) {
  add_alloc(graph);
  owned_graph copy;
  owned_graph const parent = make_graph();
  cudaGraphNode_t node = nullptr;
  EXPECT_EQ(tried(cudaGraphClone(copy.out(), graph)), cudaErrorNotSupported);
  EXPECT_NE(tried(cudaGraphAddChildGraphNode(&node, parent, nullptr, 0, graph)), cudaSuccess);
}

TEST_F(GraphMemory, LetsAGraphBeMovedIntoAChildNode) {
  owned_graph const parent = make_graph();
  auto const memory = add_alloc(graph);
  ASSERT_EQ(try_free_node(graph, memory.data, use(memory)), cudaSuccess);
  auto p = params_of(cudaGraphNodeTypeGraph);
  p.graph.graph = graph.release();
  p.graph.ownership = cudaGraphChildGraphOwnershipMove;
  add_any(parent, p);
  auto params = alloc_params(16);
  cudaGraphNode_t node = nullptr;
  EXPECT_NE(tried(cudaGraphAddMemAllocNode(&node, p.graph.graph, nullptr, 0, &params)),
            cudaSuccess);
  run(parent, stream);
  EXPECT_EQ(out.load(1), 3);
}

TEST_F(GraphMemory, LetsAGraphHaveOneExecAtATime) {
  auto const memory = add_alloc(graph);
  ASSERT_EQ(try_free_node(graph, memory.data, memory.node), cudaSuccess);
  owned_exec first = instantiate(graph);
  owned_exec second;
  EXPECT_NE(tried(cudaGraphInstantiate(second.out(), graph, 0)), cudaSuccess);
  first.reset();
  EXPECT_EQ(tried(cudaGraphInstantiate(second.out(), graph, 0)), cudaSuccess);
}

TEST_F(GraphMemory, KeepsNodesAndEdgesFromBeingRemoved) {
  auto const memory = add_alloc(graph);
  auto* const behind = add_kernel(graph, tiny_call(), memory.node);
  auto* const beside = add_any(graph, params_of(cudaGraphNodeTypeEmpty));
  cudaGraphNode_t freed = nullptr;
  must(cudaGraphAddMemFreeNode(&freed, graph, &behind, 1, memory.data));
  for (auto* const each : {memory.node, freed, beside})
    EXPECT_EQ(tried(cudaGraphDestroyNode(each)), cudaErrorNotSupported);
  EXPECT_NE(tried(cudaGraphDestroyNode(behind)), cudaSuccess);
  EXPECT_NE(tried(cudaGraphRemoveDependencies(graph, &memory.node, &behind, nullptr, 1)),
            cudaSuccess);
  EXPECT_EQ(node_count(graph), 4U);
  EXPECT_EQ(edge_count(graph), 2U);
}

TEST_F(GraphMemory, NodesCannotBeSetAgain) {
  auto const memory = add_alloc(graph);
  owned_exec const exec = instantiate(graph);
  auto p = params_of(cudaGraphNodeTypeMemAlloc);
  auto const wanted = alloc_params(4 * sizeof(int));
  p.alloc.poolProps = wanted.poolProps;
  p.alloc.bytesize = wanted.bytesize;
  EXPECT_NE(tried(cudaGraphNodeSetParams(memory.node, &p)), cudaSuccess);
  EXPECT_NE(tried(cudaGraphExecNodeSetParams(exec, memory.node, &p)), cudaSuccess);
}

TEST_F(GraphMemory, CannotBeAllocatedInABody) {
  auto const made = add_conditional_node(graph, make_condition(graph, 1), cudaGraphCondTypeIf);
  auto params = alloc_params(16);
  cudaGraphNode_t node = nullptr;
  auto const added = cudaGraphAddMemAllocNode(&node, made.bodies[0], nullptr, 0, &params);
  owned_exec exec;
  EXPECT_TRUE(added != cudaSuccess ||
              cudaGraphInstantiate(exec.out(), graph, 0) == cudaErrorInvalidValue);
  static_cast<void>(cudaGetLastError());
}

TEST_F(GraphMemory, OfACaptureIsThatOfNodes) {
  must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  void* memory = nullptr;
  must(cudaMallocAsync(&memory, 16, stream));
  must(launch_fill(stream, static_cast<int*>(memory), 4, 6));
  must(launch_copy(stream, out.data(), static_cast<int*>(memory), 4));
  must(cudaFreeAsync(memory, stream));
  must(cudaStreamEndCapture(stream, graph.out()));
  EXPECT_EQ(try_free_node(graph, memory), cudaErrorInvalidValue);
  owned_graph copy;
  EXPECT_NE(tried(cudaGraphClone(copy.out(), graph)), cudaSuccess);
  run(graph, stream);
  EXPECT_EQ(out.load(3), 6);
}

}  // namespace
}  // namespace escrow::test
