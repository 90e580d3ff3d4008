// SPDX-License-Identifier: Apache-2.0
// What a pointer points to; alloc and free nodes, what a launch of them needs, and their limits.
#include "graph_nodes.hpp"

namespace escrow::test {
namespace {

cudaPointerAttributes attributes_of(void const* address) {
  cudaPointerAttributes result{};
  must(cudaPointerGetAttributes(&result, address));
  return result;
}

TEST(PointerAttributes, TellDeviceMemoryPinnedMemoryAndTheRestApart) {
  device_ints const device{4};
  pinned_ints const pinned{4};
  int const local = 0;
  auto const of_device = attributes_of(device.data() + 1);
  EXPECT_EQ(of_device.type, cudaMemoryTypeDevice);
  EXPECT_EQ(of_device.devicePointer, device.data() + 1);
  EXPECT_EQ(of_device.hostPointer, nullptr);
  auto const of_pinned = attributes_of(pinned.data());
  EXPECT_EQ(of_pinned.type, cudaMemoryTypeHost);
  EXPECT_EQ(of_pinned.devicePointer, pinned.data());
  EXPECT_EQ(of_pinned.hostPointer, pinned.data());
  EXPECT_EQ(of_device.device + of_pinned.device, 0);
  EXPECT_EQ(attributes_of(&local).type, cudaMemoryTypeUnregistered);
}

class GraphMemory : public testing::Test {
 protected:
  // Allocates, fills with 3, copies to `out`; returns the last node.
  cudaGraphNode_t use(allocation const& memory) {
    auto* const filled = add_kernel(graph, fill_call(memory.data, 4, 3), memory.node);
    return add_kernel(graph, copy_call(out.data(), memory.data, 4), filled);
  }
  allocation add_freed() {
    allocation const memory = add_alloc(graph);
    add_free(graph, memory, memory.node);
    return memory;
  }
  static cudaError_t try_free_node(cudaGraph_t to, void* address) {
    cudaGraphNode_t node = nullptr;
    return tried(cudaGraphAddMemFreeNode(&node, to, nullptr, 0, address));
  }
  static cudaError_t try_alloc_node(cudaGraph_t to, std::size_t bytes) {
    auto params = alloc_params(bytes);
    cudaGraphNode_t node = nullptr;
    return tried(cudaGraphAddMemAllocNode(&node, to, nullptr, 0, &params));
  }

  pinned_ints out{4};
  owned_stream stream = make_stream();
  owned_graph graph = make_graph();
};

TEST_F(GraphMemory, HasAnAddressThatIsNeverARegisteredOne) {
  allocation const memory = add_freed();
  EXPECT_EQ(attributes_of(memory.data).type, cudaMemoryTypeUnregistered);
  owned_exec const exec = instantiate(graph);
  EXPECT_EQ(attributes_of(memory.data).type, cudaMemoryTypeUnregistered);
  run(exec, stream);
  EXPECT_EQ(attributes_of(memory.data).type, cudaMemoryTypeUnregistered);
}

TEST_F(GraphMemory, LeftByALaunchKeepsTheNextFromRunningUntilItIsFreed) {
  auto const memory = add_alloc(graph);
  use(memory);
  owned_exec const exec = instantiate(graph);
  run(exec, stream);
  EXPECT_EQ(tried(cudaGraphLaunch(exec, stream)), cudaErrorInvalidValue);
  // Work behind the launch may use it.
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
  run(exec, stream);
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

TEST_F(GraphMemory, NodesAllocateAtLeastAByteAndFreeOnceOnlyWhatANodeAllocated) {
  auto const memory = add_freed();
  EXPECT_EQ(try_free_node(graph, memory.data), cudaErrorInvalidValue);
  owned_graph const other = make_graph();
  EXPECT_EQ(try_free_node(other, memory.data), cudaErrorInvalidValue);
  device_ints const plain{4};
  EXPECT_EQ(try_free_node(graph, plain.data()), cudaErrorInvalidValue);
  EXPECT_EQ(try_free_node(graph, nullptr), cudaErrorInvalidValue);
  EXPECT_NE(try_alloc_node(graph, 0), cudaSuccess);
}

TEST_F(GraphMemory, IsADevicesAloneAndMayBeReachedByTheHost) {
  auto const status = [this](cudaMemLocation const& place, cudaMemLocation const& peer) {
    cudaMemAccessDesc const access{peer, cudaMemAccessFlagsProtReadWrite};
    auto params = alloc_params(16);
    params.poolProps.location = place;
    params.accessDescs = &access;
    params.accessDescCount = 1;
    cudaGraphNode_t node = nullptr;
    return tried(cudaGraphAddMemAllocNode(&node, graph, nullptr, 0, &params));
  };
  cudaMemLocation const device{cudaMemLocationTypeDevice, 0};
  cudaMemLocation const no_device{cudaMemLocationTypeDevice, 99};
  cudaMemLocation const host{cudaMemLocationTypeHost, 0};
  EXPECT_EQ(status(device, device), cudaSuccess);
  EXPECT_NE(status(host, device), cudaSuccess);
  EXPECT_EQ(status(device, host), cudaSuccess);
  EXPECT_NE(status(no_device, device), cudaSuccess);
  EXPECT_NE(status(device, no_device), cudaSuccess);
}

TEST_F(GraphMemory, KeepsAGraphFromBeingClonedOrCopiedIntoAChildNodeAndItsNodesFromBeingSet) {
  auto* const allocates = add_alloc(graph).node;
  owned_exec const exec = instantiate(graph);
  auto p = any_alloc(4 * sizeof(int));
  EXPECT_NE(tried(cudaGraphNodeSetParams(allocates, &p)), cudaSuccess);
  EXPECT_NE(tried(cudaGraphExecNodeSetParams(exec, allocates, &p)), cudaSuccess);
  owned_graph copy;
  owned_graph const parent = make_graph();
  cudaGraphNode_t node = nullptr;
  EXPECT_EQ(tried(cudaGraphClone(copy.out(), graph)), cudaErrorNotSupported);
  EXPECT_NE(tried(cudaGraphAddChildGraphNode(&node, parent, nullptr, 0, graph)), cudaSuccess);
}

#if CUDART_VERSION >= 12090  // the first with ownership
TEST_F(GraphMemory, LetsAGraphBeMovedIntoAChildNode) {
  owned_graph const parent = make_graph();
  auto const memory = add_alloc(graph);
  add_free(graph, memory, use(memory));
  auto p = params_of(cudaGraphNodeTypeGraph);
  p.graph.graph = graph.release();
  p.graph.ownership = cudaGraphChildGraphOwnershipMove;
  add_any(parent, p);
  EXPECT_NE(try_alloc_node(p.graph.graph, 16), cudaSuccess);
  run(parent, stream);
  EXPECT_EQ(out.load(1), 3);
}
#endif

TEST_F(GraphMemory, LetsAGraphHaveOneExecAtATime) {
  add_freed();
  owned_exec first = instantiate(graph);
  EXPECT_NE(status_of_instantiation(graph), cudaSuccess);
  first.reset();
  EXPECT_EQ(status_of_instantiation(graph), cudaSuccess);
}

TEST_F(GraphMemory, KeepsNodesAndEdgesFromBeingRemoved) {
  auto const memory = add_alloc(graph);
  auto* const behind = add_kernel(graph, tiny_call(), memory.node);
  auto* const beside = add_any(graph, params_of(cudaGraphNodeTypeEmpty));
  auto* const freed = add_free(graph, memory, behind);
  for (auto* const each : {memory.node, freed, beside})
    EXPECT_EQ(tried(cudaGraphDestroyNode(each)), cudaErrorNotSupported);
  EXPECT_NE(tried(cudaGraphDestroyNode(behind)), cudaSuccess);
  EXPECT_NE(tried(cudaGraphRemoveDependencies(graph, &memory.node, &behind, nullptr, 1)),
            cudaSuccess);
  EXPECT_EQ(node_count(graph), 4U);
  EXPECT_EQ(edge_count(graph), 2U);
}

TEST_F(GraphMemory, CannotBeAllocatedInABody) {
  cudaError_t const added = try_alloc_node(add_conditional(graph), 16);
  EXPECT_TRUE(added != cudaSuccess || status_of_instantiation(graph) == cudaErrorInvalidValue);
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

// What memory_source::from() relies on.
TEST(PoolMemory, OfASynchronizedStreamIsForAllStreamsAndIsFreedByCudaFreeAlsoInARelaxedCapture) {
  owned_stream const other = make_stream();
  capture captured{other, cudaStreamCaptureModeRelaxed};
  cudaMemPool_t pool = nullptr;
  must(cudaDeviceGetDefaultMemPool(&pool, 0));
  void* memory = nullptr;
  {
    owned_stream const own = make_stream();
    must(cudaMallocFromPoolAsync(&memory, 64, pool, own));
    must(cudaStreamSynchronize(own));
  }
  must(captured.end());
  owned_stream const third = make_stream();
  pinned_ints out{4};
  must(launch_fill(third, static_cast<int*>(memory), 4, 6));
  must(launch_copy(third, out.data(), static_cast<int*>(memory), 4));
  must(cudaStreamSynchronize(third));
  EXPECT_EQ(out.load(3), 6);
  must(cudaFree(memory));
}

}  // namespace
}  // namespace escrow::test
