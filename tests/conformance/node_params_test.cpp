// Nodes of graphs: what is read back, and what setting it again does to execs made later.
#include <gtest/gtest.h>

#include <atomic>
#include <vector>

#include "build_graph.hpp"
#include "graph_nodes.hpp"
#include "handles.hpp"
#include "memory.hpp"

namespace escrow::test {
namespace {

void CUDART_CB add_one(void* counter) {
  // Release: pairs with the acquire of whoever reads the count.
  static_cast<std::atomic<int>*>(counter)->fetch_add(1, std::memory_order_release);
}

void CUDART_CB add_ten(void* counter) {
  static_cast<std::atomic<int>*>(counter)->fetch_add(10, std::memory_order_release);
}

class NodeParams : public testing::Test {
 protected:
  owned_stream stream = make_stream();
  owned_graph graph = make_graph();
  device_ints memory{4};
  pinned_ints pinned{4};
};

TEST_F(NodeParams, OfAKernelAreReadBackAndSetAgain) {
  auto* const node = add_kernel(graph, add_call(memory.data(), 3));
  cudaKernelNodeParams read{};
  must(cudaGraphKernelNodeGetParams(node, &read));
  EXPECT_EQ(read.func, kernel_address(kernel_id::add));
  EXPECT_EQ(read.gridDim.x, 1U);
  EXPECT_EQ(*static_cast<int**>(read.kernelParams[0]), memory.data());
  EXPECT_EQ(*static_cast<int*>(read.kernelParams[1]), 3);
  auto call = add_call(memory.data() + 1, 4);
  auto const params = call.params();
  must(cudaGraphKernelNodeSetParams(node, &params));
  run(graph, stream);
  EXPECT_EQ(memory.read(), (std::vector<int>{0, 4, 0, 0}));
}

TEST_F(NodeParams, OfAKernelWithMoreThreadsThanABlockCanHaveAreRefusedAsItsLaunchIs) {
  auto call = add_call(memory.data(), 1);
  auto params = call.params();
  params.blockDim = dim3{4096};
  EXPECT_EQ(tried(cudaLaunchKernel(params.func, params.gridDim, params.blockDim,
                                   params.kernelParams, 0, stream)),
            cudaErrorInvalidValue);
  cudaLaunchConfig_t config{};
  config.gridDim = params.gridDim;
  config.blockDim = params.blockDim;
  config.stream = stream;
  EXPECT_EQ(tried(cudaLaunchKernelExC(&config, params.func, params.kernelParams)),
            cudaErrorInvalidValue);
  cudaGraphNode_t node = nullptr;
  EXPECT_EQ(tried(cudaGraphAddKernelNode(&node, graph, nullptr, 0, &params)),
            cudaErrorInvalidValue);
  EXPECT_EQ(memory.read(), (std::vector<int>{0, 0, 0, 0}));
}

TEST_F(NodeParams, OfAFillAreReadBackAndSetAgain) {
  auto* const node = add_fill(graph, fill_params(memory.data(), 3, 4, 2, 2, 2 * sizeof(int)));
  cudaMemsetParams read{};
  must(cudaGraphMemsetNodeGetParams(node, &read));
  EXPECT_EQ(read.dst, memory.data());
  EXPECT_EQ(read.value, 3U);
  EXPECT_EQ(read.elementSize, 4U);
  EXPECT_EQ(read.width, 2U);
  EXPECT_EQ(read.height, 2U);
  EXPECT_EQ(read.pitch, 2 * sizeof(int));
  auto const params = fill_params(memory.data() + 1, 5, 4, 1);
  must(cudaGraphMemsetNodeSetParams(node, &params));
  run(graph, stream);
  EXPECT_EQ(memory.read(), (std::vector<int>{0, 5, 0, 0}));
}

TEST_F(NodeParams, OfACopyAreReadBackAndSetAgainAsRowsOrAsBytes) {
  auto const first = copy_params(pinned.data(), 8, memory.data(), 8, 4, 2);
  cudaGraphNode_t node = nullptr;
  must(cudaGraphAddMemcpyNode(&node, graph, nullptr, 0, &first));
  cudaMemcpy3DParms read{};
  must(cudaGraphMemcpyNodeGetParams(node, &read));
  EXPECT_EQ(read.dstPtr.ptr, pinned.data());
  EXPECT_EQ(read.dstPtr.pitch, 8U);
  EXPECT_EQ(read.srcPtr.ptr, memory.data());
  EXPECT_EQ(read.extent.width, 4U);
  EXPECT_EQ(read.extent.height, 2U);
  auto const second = copy_params(pinned.data(), 16, memory.data(), 16, 16, 1);
  must(cudaGraphMemcpyNodeSetParams(node, &second));
  must(cudaGraphMemcpyNodeSetParams1D(node, pinned.data() + 1, memory.data(), sizeof(int),
                                      cudaMemcpyDefault));
  must(cudaGraphMemcpyNodeGetParams(node, &read));
  EXPECT_EQ(read.dstPtr.ptr, pinned.data() + 1);
  EXPECT_EQ(read.extent.width * read.extent.height * read.extent.depth, sizeof(int));
  must(launch_fill(stream, memory.data(), 4, 8));
  run(graph, stream);
  EXPECT_EQ(pinned.load(0), 0);
  EXPECT_EQ(pinned.load(1), 8);
  EXPECT_EQ(pinned.load(2), 0);
}

TEST_F(NodeParams, OfAHostFunctionAreReadBackAndSetAgain) {
  std::atomic<int> counter{0};
  cudaHostNodeParams params{&add_one, &counter};
  cudaGraphNode_t node = nullptr;
  must(cudaGraphAddHostNode(&node, graph, nullptr, 0, &params));
  cudaHostNodeParams read{};
  must(cudaGraphHostNodeGetParams(node, &read));
  EXPECT_EQ(read.fn, &add_one);
  EXPECT_EQ(read.userData, &counter);
  params.fn = &add_ten;
  must(cudaGraphHostNodeSetParams(node, &params));
  run(graph, stream);
  EXPECT_EQ(counter.load(std::memory_order_acquire), 10);
}

TEST_F(NodeParams, OfEventNodesAreReadBackAndSetAgain) {
  owned_event const first = make_event();
  owned_event const second = make_event();
  cudaGraphNode_t record = nullptr;
  cudaGraphNode_t wait = nullptr;
  must(cudaGraphAddEventRecordNode(&record, graph, nullptr, 0, first));
  must(cudaGraphAddEventWaitNode(&wait, graph, nullptr, 0, first));
  must(cudaGraphEventRecordNodeSetEvent(record, second));
  cudaEvent_t read = nullptr;
  must(cudaGraphEventRecordNodeGetEvent(record, &read));
  EXPECT_EQ(read, second.get());
  must(cudaGraphEventWaitNodeGetEvent(wait, &read));
  EXPECT_EQ(read, first.get());
  must(cudaGraphEventWaitNodeSetEvent(wait, second));
  must(cudaGraphEventWaitNodeGetEvent(wait, &read));
  EXPECT_EQ(read, second.get());
}

TEST_F(NodeParams, AreSetByTheCallForAllKindsAsWell) {
  auto* const node = add_fill(graph, fill_params(memory.data(), 3, 4, 4));
  auto p = params_of(cudaGraphNodeTypeMemset);
  p.memset = {memory.data(), 0, 9, 4, 1, 1};
  must(cudaGraphNodeSetParams(node, &p));
  run(graph, stream);
  EXPECT_EQ(memory.read(), (std::vector<int>{9, 0, 0, 0}));
}

TEST_F(NodeParams, OfAnotherKindAreRefused) {
  auto* const fill = add_fill(graph, fill_params(memory.data(), 3, 4, 4));
  auto p = params_of(cudaGraphNodeTypeHost);
  p.host.fn = &add_one;
  EXPECT_NE(tried(cudaGraphNodeSetParams(fill, &p)), cudaSuccess);
  cudaHostNodeParams host{&add_one, nullptr};
  EXPECT_NE(tried(cudaGraphHostNodeSetParams(fill, &host)), cudaSuccess);
  EXPECT_NE(tried(cudaGraphHostNodeGetParams(fill, &host)), cudaSuccess);
  cudaEvent_t event = nullptr;
  EXPECT_NE(tried(cudaGraphEventWaitNodeGetEvent(fill, &event)), cudaSuccess);
}

TEST_F(NodeParams, OfAGraphDoNotConcernAnExecThatIsThere) {
  auto* const node = add_kernel(graph, add_call(memory.data(), 3));
  owned_exec const exec = instantiate(graph);
  auto call = add_call(memory.data(), 100);
  auto const params = call.params();
  must(cudaGraphKernelNodeSetParams(node, &params));
  run(exec, stream);
  EXPECT_EQ(memory.read()[0], 3);
}

}  // namespace
}  // namespace escrow::test
