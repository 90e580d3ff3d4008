// SPDX-License-Identifier: Apache-2.0
// Parameters of nodes: read back and set again, in a graph and in an exec, or refused.
#include <tuple>

#include "graph_nodes.hpp"

namespace escrow::test {
namespace {

void CUDART_CB add_one(void* counter) {
  static_cast<std::atomic<int>*>(counter)->fetch_add(1);
}

void CUDART_CB add_ten(void* counter) {
  static_cast<std::atomic<int>*>(counter)->fetch_add(10);
}

TEST(UnknownKernel, IsNeitherLaunchedNorAddedNorAskedFor) {
  static int const no_kernel = 0;
  void* const function = const_cast<int*>(&no_kernel);
  cudaLaunchConfig_t config{};
  config.gridDim = config.blockDim = dim3(1);
  EXPECT_EQ(tried(cudaLaunchKernelExC(&config, function, nullptr)), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(tried(cudaLaunchKernel(function, dim3(1), dim3(1), nullptr, 0, nullptr)),
            cudaErrorInvalidResourceHandle);
  cudaFuncAttributes attributes{};
  EXPECT_EQ(tried(cudaFuncGetAttributes(&attributes, function)), cudaErrorInvalidResourceHandle);
  owned_graph const graph = make_graph();
  cudaGraphNodeParams params{};
  params.type = cudaGraphNodeTypeKernel;
  params.kernel.func = function;
  params.kernel.gridDim = params.kernel.blockDim = dim3(1);
  cudaGraphNode_t made = nullptr;
  EXPECT_EQ(tried(cudaGraphAddNode(&made, graph, nullptr, nullptr, 0, &params)),
            cudaErrorInvalidResourceHandle);
}

class NodeParams : public testing::Test {
 protected:
  using ints = std::vector<int>;

  // Sets a node of an exec.
  static cudaError_t set(cudaGraphExec_t exec, cudaGraphNode_t node, kernel_call call) {
    cudaKernelNodeParams const params = call.params();
    return tried(cudaGraphExecKernelNodeSetParams(exec, node, &params));
  }
  static cudaError_t set(cudaGraphExec_t exec, cudaGraphNode_t node,
                         cudaMemsetParams const& params) {
    return tried(cudaGraphExecMemsetNodeSetParams(exec, node, &params));
  }
  static cudaError_t set(cudaGraphExec_t exec, cudaGraphNode_t node, void* to, void const* from,
                         std::size_t bytes, cudaMemcpyKind kind = cudaMemcpyDefault) {
    return tried(cudaGraphExecMemcpyNodeSetParams1D(exec, node, to, from, bytes, kind));
  }
  static cudaError_t set(cudaGraphExec_t exec, cudaGraphNode_t node,
                         cudaMemcpy3DParms const& params) {
    return tried(cudaGraphExecMemcpyNodeSetParams(exec, node, &params));
  }

  owned_stream stream = make_stream();
  owned_graph graph = make_graph();
  device_ints memory{4};
  pinned_ints pinned{4};
};

TEST_F(NodeParams, OfAKernelAreReadBackAndSetAgain) {
  auto* const node = add_kernel(graph, add_call(memory.data(), 3));
  owned_exec const earlier = instantiate(graph);
  cudaKernelNodeParams read{};
  must(cudaGraphKernelNodeGetParams(node, &read));
  EXPECT_EQ(read.func, kernel_address(kernel_id::add));
  EXPECT_EQ(read.gridDim.x, 1U);
  EXPECT_EQ(*static_cast<int**>(read.kernelParams[0]), memory.data());
  EXPECT_EQ(*static_cast<int*>(read.kernelParams[1]), 3);
  auto call = add_call(memory.data() + 1, 4);
  cudaKernelNodeParams const params = call.params();
  must(cudaGraphKernelNodeSetParams(node, &params));
  run(graph, stream);
  EXPECT_EQ(memory.read(), (ints{0, 4, 0, 0}));
  run(earlier, stream);
  EXPECT_EQ(memory.read(), (ints{3, 4, 0, 0})) << "an exec that exists keeps its own";
}

TEST_F(NodeParams, OfAKernelHaveAttributesWhichStayUnlessTheyAreSet) {
  if (compute_capability() < 9) GTEST_SKIP() << "the device has no clusters";
  auto call = cluster_size_call(pinned.data());
  auto const params_of_blocks = [&call](unsigned blocks) {
    cudaKernelNodeParams result = call.params();
    result.gridDim.x = blocks;
    return result;
  };
  cudaKernelNodeParams const four = params_of_blocks(4);
  auto* const node = add_node(cudaGraphAddKernelNode, graph, nullptr, &four);
  auto const give = [&](cudaLaunchAttribute const& each) {
    return tried(cudaGraphKernelNodeSetAttribute(node, each.id, &each.val));
  };
  auto const clusters = [](int size) {
    return attribute_of(cudaLaunchAttributeClusterDimension, size);
  };
  auto const size = [&] {
    run(graph, stream);
    return pinned.load();
  };
  EXPECT_EQ(size(), 1);
  EXPECT_EQ(give(clusters(2)), cudaSuccess);
  EXPECT_EQ(size(), 2);
  EXPECT_EQ(give(clusters(3)), cudaErrorInvalidClusterSize);
  EXPECT_EQ(give(clusters(64)), cudaErrorInvalidClusterSize);
  EXPECT_EQ(size(), 2);
  owned_exec const exec = instantiate(graph);
  cudaKernelNodeParams const eight = params_of_blocks(8);
  cudaKernelNodeParams const nine = params_of_blocks(9);
  EXPECT_EQ(tried(cudaGraphKernelNodeSetParams(node, &nine)), cudaErrorInvalidClusterSize);
  EXPECT_EQ(cudaGraphKernelNodeSetParams(node, &eight), cudaSuccess);
  EXPECT_EQ(size(), 2);
  EXPECT_EQ(give(clusters(4)), cudaSuccess);
  EXPECT_EQ(cudaGraphExecKernelNodeSetParams(exec, node, &eight), cudaSuccess);
  run(exec, stream);
  EXPECT_EQ(pinned.load(), 2) << "in an exec they stay";
  cudaLaunchAttributeValue const none{};
  EXPECT_EQ(cudaGraphKernelNodeSetAttribute(node, cudaLaunchAttributeClusterDimension, &none),
            cudaSuccess);
  EXPECT_EQ(cudaGraphKernelNodeSetParams(node, &nine), cudaSuccess);
  EXPECT_EQ(size(), 1);
}

TEST_F(NodeParams, OfAKernelHaveSomeOfTheAttributesOfALaunch) {
  auto* const node = add_kernel(graph, tiny_call());
  auto const give = [&](cudaLaunchAttribute const& each) {
    return tried(cudaGraphKernelNodeSetAttribute(node, each.id, &each.val));
  };
  for (auto const id :
       {cudaLaunchAttributeProgrammaticStreamSerialization, cudaLaunchAttributeProgrammaticEvent,
        cudaLaunchAttributeSynchronizationPolicy, cudaLaunchAttributeLaunchCompletionEvent}) {
    EXPECT_EQ(give(attribute_of(id, 1)), cudaErrorInvalidValue) << id;
  }
  for (auto const id :
       {cudaLaunchAttributeCooperative, cudaLaunchAttributeClusterSchedulingPolicyPreference,
        cudaLaunchAttributeMemSyncDomain, cudaLaunchAttributePreferredSharedMemoryCarveout}) {
    EXPECT_EQ(give(attribute_of(id, 1)), cudaSuccess) << id;
  }
  EXPECT_EQ(give(attribute_of(cudaLaunchAttributePriority, -99)), cudaSuccess);
  cudaLaunchAttributeValue priority{};
  must(cudaGraphKernelNodeGetAttribute(node, cudaLaunchAttributePriority, &priority));
  EXPECT_EQ(priority.priority, -5) << "the highest";
}

TEST_F(NodeParams, OfAFillAreReadBackAndSetAgain) {
  auto* const node = add_fill(graph, fill_params(memory.data(), 3, 4, 2, 2, 2 * sizeof(int)));
  cudaMemsetParams read{};
  must(cudaGraphMemsetNodeGetParams(node, &read));
  EXPECT_EQ(std::tuple(read.dst, read.value, read.elementSize, read.width, read.height, read.pitch),
            std::tuple(memory.data(), 3U, 4U, 2U, 2U, 8U));
  auto const params = fill_params(memory.data() + 1, 5, 4, 1);
  must(cudaGraphMemsetNodeSetParams(node, &params));
  run(graph, stream);
  EXPECT_EQ(memory.read(), (ints{0, 5, 0, 0}));
}

TEST_F(NodeParams, OfACopyAreReadBackAndSetAgainAsRowsOrAsBytes) {
  auto const first = copy_params(pinned.data(), 8, memory.data(), 8, 4, 2);
  auto* const node = add_node(cudaGraphAddMemcpyNode, graph, nullptr, &first);
  cudaMemcpy3DParms read{};
  must(cudaGraphMemcpyNodeGetParams(node, &read));
  EXPECT_EQ(std::tuple(read.dstPtr.ptr, read.dstPtr.pitch, read.srcPtr.ptr, read.extent.width,
                       read.extent.height),
            std::tuple(pinned.data(), 8U, memory.data(), 4U, 2U));
  auto const second = copy_params(pinned.data(), 16, memory.data(), 16, 16, 1);
  must(cudaGraphMemcpyNodeSetParams(node, &second));
  must(cudaGraphMemcpyNodeSetParams1D(node, pinned.data() + 1, memory.data(), sizeof(int),
                                      cudaMemcpyDefault));
  must(cudaGraphMemcpyNodeGetParams(node, &read));
  EXPECT_EQ(read.dstPtr.ptr, pinned.data() + 1);
  EXPECT_EQ(read.extent.width * read.extent.height * read.extent.depth, sizeof(int));
  must(launch_fill(stream, memory.data(), 4, 8));
  run(graph, stream);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(pinned.load(i), i == 1 ? 8 : 0);
}

TEST_F(NodeParams, OfAHostFunctionAndOfEventsAreReadBackAndSetAgain) {
  std::atomic<int> counter{0};
  owned_event const first = make_event();
  owned_event const second = make_event();
  auto* const host = add_host(graph, &add_one, &counter);
  cudaHostNodeParams params{};
  must(cudaGraphHostNodeGetParams(host, &params));
  EXPECT_EQ(params.fn, &add_one);
  EXPECT_EQ(params.userData, &counter);
  params.fn = &add_ten;
  must(cudaGraphHostNodeSetParams(host, &params));
  run(graph, stream);
  EXPECT_EQ(counter, 10);
  auto* const record = add_record(graph, first);
  auto* const wait = add_wait(graph, first);
  cudaEvent_t read = nullptr;
  must(cudaGraphEventRecordNodeSetEvent(record, second));
  must(cudaGraphEventRecordNodeGetEvent(record, &read));
  EXPECT_EQ(read, second.get());
  must(cudaGraphEventWaitNodeGetEvent(wait, &read));
  EXPECT_EQ(read, first.get());
  must(cudaGraphEventWaitNodeSetEvent(wait, second));
  must(cudaGraphEventWaitNodeGetEvent(wait, &read));
  EXPECT_EQ(read, second.get());
}

TEST_F(NodeParams, OfAnotherKindOrElementsOfThreeBytesAreRefused) {
  auto const odd = fill_params(memory.data(), 1, 3, 1);
  cudaGraphNode_t none = nullptr;
  EXPECT_EQ(tried(cudaGraphAddMemsetNode(&none, graph, nullptr, 0, &odd)), cudaErrorInvalidValue);
  auto* const fill = add_fill(graph, fill_params(memory.data(), 3, 4, 4));
  cudaHostNodeParams host{&add_one, nullptr};
  EXPECT_NE(tried(cudaGraphHostNodeSetParams(fill, &host)), cudaSuccess);
  EXPECT_NE(tried(cudaGraphHostNodeGetParams(fill, &host)), cudaSuccess);
  cudaEvent_t event = nullptr;
  EXPECT_NE(tried(cudaGraphEventWaitNodeGetEvent(fill, &event)), cudaSuccess);
}

using ExecParams = NodeParams;

TEST_F(ExecParams, OfAKernelConcernLaterLaunchesAndNotTheGraphAlsoInABody) {
  for (bool const is_in_body : {false, true}) {
    pinned_flag flag;
    owned_graph const held = make_graph();
    auto* const waits = add_kernel(held, wait_flag_call(flag.get()));
    cudaGraph_t place = held;
    if (is_in_body) {
      auto const condition = make_condition(held, 1);
      place = add_conditional_node(held, condition, cudaGraphCondTypeIf, 1, waits).bodies[0];
    }
    auto* const node = add_kernel(place, add_call(pinned.data(), 1), is_in_body ? nullptr : waits);
    owned_exec const exec = instantiate(held);
    must(cudaGraphLaunch(exec, stream));
    EXPECT_EQ(set(exec, node, add_call(pinned.data(), 10)), cudaSuccess);
    flag.raise();
    must(cudaStreamSynchronize(stream));
    EXPECT_EQ(pinned.load(), 1);
    run(exec, stream);
    EXPECT_EQ(pinned.load(), 11);
    cudaKernelNodeParams read{};
    must(cudaGraphKernelNodeGetParams(node, &read));
    EXPECT_EQ(*static_cast<int*>(read.kernelParams[1]), 1);
    pinned.store(0, 0);
  }
}

TEST_F(ExecParams, OfAFillMayHaveAnotherValueAndAddressButRowsNoOtherDimensions) {
  auto* const flat = add_fill(graph, fill_params(memory.data() + 2, 3, 4, 1));
  owned_exec const exec = instantiate(graph);
  EXPECT_EQ(set(exec, flat, fill_params(memory.data() + 3, 5, 4, 1)), cudaSuccess);
  run(exec, stream);
  EXPECT_EQ(memory.read(), (ints{0, 0, 0, 5}));
  EXPECT_NE(set(exec, flat, fill_params(memory.data() + 3, 5, 4, 0)), cudaSuccess);

  owned_graph const second = make_graph();
  auto* const rows = add_fill(second, fill_params(memory.data(), 3, 4, 1, 2, 8));
  owned_exec const exec_of_rows = instantiate(second);
  EXPECT_NE(set(exec_of_rows, rows, fill_params(memory.data(), 3, 4, 1, 3, 8)), cudaSuccess);
  EXPECT_NE(set(exec_of_rows, rows, fill_params(memory.data(), 3, 4, 1)), cudaSuccess);
  EXPECT_EQ(set(exec_of_rows, rows, fill_params(memory.data() + 1, 4, 4, 1, 2, 8)), cudaSuccess);
  run(exec_of_rows, stream);
  EXPECT_EQ(memory.read(), (ints{0, 4, 0, 4}));
}

TEST_F(ExecParams, OfACopyMayHaveOtherAddressesKindsOfMemoryAndSize) {
  int const plain[] = {7, 8};
  auto* const node = add_copy(graph, pinned.data(), memory.data(), sizeof(int));
  owned_exec const exec = instantiate(graph);
  auto const run_as = [&](void* to, void const* from, std::size_t bytes) {
    EXPECT_EQ(set(exec, node, to, from, bytes), cudaSuccess);
    run(exec, stream);
  };
  must(launch_fill(stream, memory.data() + 2, 1, 6));
  run_as(pinned.data() + 1, memory.data() + 2, sizeof(int));
  EXPECT_EQ(pinned.load(0), 0);
  EXPECT_EQ(pinned.load(1), 6);
  EXPECT_EQ(set(exec, node, copy_params(pinned.data() + 3, 4, memory.data() + 2, 4, 4, 1)),
            cudaSuccess);
  run(exec, stream);
  EXPECT_EQ(pinned.load(3), 6);
  pinned.store(0, 5);
  run_as(memory.data(), pinned.data(), sizeof(int));
  EXPECT_EQ(memory.read(), (ints{5, 0, 6, 0}));
  run_as(memory.data(), plain, 2 * sizeof(int));
  EXPECT_EQ(memory.read(), (ints{7, 8, 6, 0}));
  run_as(memory.data() + 2, memory.data(), 2 * sizeof(int));
  EXPECT_EQ(memory.read(), (ints{7, 8, 7, 8}));
}

TEST_F(ExecParams, OfACopyMayNotHaveRowsNoBytesOrAnExplicitKind) {
  auto* const node = add_copy(graph, pinned.data(), memory.data(), sizeof(int));
  owned_exec const exec = instantiate(graph);
  EXPECT_EQ(set(exec, node, pinned.data(), memory.data(), 0), cudaErrorInvalidValue);
  EXPECT_EQ(set(exec, node, memory.data(), pinned.data(), 4, cudaMemcpyHostToDevice),
            cudaErrorInvalidValue);
  EXPECT_EQ(set(exec, node, copy_params(pinned.data(), 8, memory.data(), 8, 4, 2)),
            cudaErrorInvalidValue);
}

TEST_F(ExecParams, OfAHostFunctionAndOfEventsMayBeAnyOther) {
  std::atomic<int> counter{0};
  owned_event const first = make_event();
  owned_event const second = make_event();
  auto* const wait = add_wait(graph, second);
  auto* const host = add_host(graph, &add_ten, nullptr, wait);
  auto* const record = add_record(graph, first, host);
  owned_exec const exec = instantiate(graph);
  cudaHostNodeParams const params{&add_ten, &counter};
  EXPECT_EQ(cudaGraphExecHostNodeSetParams(exec, host, &params), cudaSuccess);
  EXPECT_EQ(cudaGraphExecEventWaitNodeSetEvent(exec, wait, first), cudaSuccess);
  EXPECT_EQ(cudaGraphExecEventRecordNodeSetEvent(exec, record, second), cudaSuccess);
  pinned_flag flag;
  owned_stream const other = make_stream();
  must(launch_wait_flag(other, flag.get()));
  must(cudaEventRecord(first, other));
  must(cudaGraphLaunch(exec, stream));
  EXPECT_EQ(cudaEventQuery(second), cudaErrorNotReady);
  EXPECT_EQ(counter, 0);
  flag.raise();
  must(cudaStreamSynchronize(stream));
  EXPECT_EQ(cudaEventQuery(second), cudaSuccess);
  EXPECT_EQ(counter, 10);
}

TEST_F(ExecParams, OfAChildMustHaveItsShapeAndTheExecTheNode) {
  auto* const node = add_child(graph, chain({add_call(pinned.data(), 1)}));
  owned_exec const exec = instantiate(graph);
  owned_graph const other = chain({add_call(pinned.data(), 10)});
  owned_graph const longer = chain({tiny_call(), tiny_call()});
  EXPECT_EQ(cudaGraphExecChildGraphNodeSetParams(exec, node, other), cudaSuccess);
  EXPECT_NE(tried(cudaGraphExecChildGraphNodeSetParams(exec, node, longer)), cudaSuccess);
  run(exec, stream);
  EXPECT_EQ(pinned.load(), 10);
  EXPECT_NE(set(exec, add_kernel(graph, tiny_call()), tiny_call()), cudaSuccess);
}

TEST_F(NodeParams, OfAChildAreAnyGraphWhichIsCopied) {
  witness seen;
  auto* const node = add_child(graph, chain({add_call(pinned.data(), 1)}));
  cudaGraph_t before = nullptr;
  must(cudaGraphChildGraphNodeGetGraph(node, &before));
  seen.move_to(before);
  cudaGraphNodeParams params = params_of(cudaGraphNodeTypeGraph);
  {
    owned_graph const longer = chain({add_call(pinned.data(), 10), add_call(pinned.data(), 100)});
    params.graph.graph = longer;
    must(cudaGraphNodeSetParams(node, &params));
  }
  EXPECT_TRUE(seen.ran_here()) << "inside the call";
  run(graph, stream);
  EXPECT_EQ(pinned.load(), 110);
  auto* const other = add_kernel(graph, tiny_call());
  params.graph.graph = chain({tiny_call()});
  EXPECT_NE(tried(cudaGraphNodeSetParams(other, &params)), cudaSuccess);
  owned_graph const conditional = make_graph();
  static_cast<void>(
      add_conditional_node(conditional, make_condition(conditional, 1), cudaGraphCondTypeIf));
  params.graph.graph = conditional;
  EXPECT_EQ(tried(cudaGraphNodeSetParams(node, &params)), cudaErrorNotSupported);
}

TEST_F(ExecParams, OfANodeInAChildMayChangeAndItMayBeDisabled) {
  auto* const node = add_child(graph, chain({add_call(pinned.data(), 1)}));
  cudaGraph_t inner = nullptr;
  must(cudaGraphChildGraphNodeGetGraph(node, &inner));
  cudaGraphNode_t inside = nullptr;
  std::size_t count = 1;
  must(cudaGraphGetNodes(inner, &inside, &count));
  owned_exec const exec = instantiate(graph);
  EXPECT_EQ(set(exec, inside, add_call(pinned.data(), 10)), cudaSuccess);
  run(exec, stream);
  EXPECT_EQ(pinned.load(), 10);
  EXPECT_EQ(cudaGraphNodeSetEnabled(exec, inside, 0), cudaSuccess);
  EXPECT_NE(tried(cudaGraphNodeSetEnabled(exec, node, 0)), cudaSuccess);
  EXPECT_EQ(set(exec, inside, add_call(pinned.data(), 100)), cudaSuccess);
  EXPECT_EQ(update(exec, graph), cudaSuccess);
  run(exec, stream);
  EXPECT_EQ(pinned.load(), 10) << "still disabled";
  EXPECT_EQ(cudaGraphNodeSetEnabled(exec, inside, 1), cudaSuccess);
  run(exec, stream);
  EXPECT_EQ(pinned.load(), 11) << "with what the update gave it";
}

TEST_F(ExecParams, AnUpdateOfTheWholeMayReverseACopy) {
  add_copy(graph, pinned.data(), memory.data(), sizeof(int));
  owned_exec const exec = instantiate(graph);
  owned_graph const other = make_graph();
  add_copy(other, memory.data() + 1, pinned.data() + 1, sizeof(int));
  cudaGraphExecUpdateResultInfo result{};
  EXPECT_EQ(tried(cudaGraphExecUpdate(exec, other, &result)), cudaSuccess);
  EXPECT_EQ(result.result, cudaGraphExecUpdateSuccess);
  EXPECT_EQ(result.errorNode, nullptr);
  pinned.store(1, 6);
  run(exec, stream);
  EXPECT_EQ(memory.read(), (ints{0, 6, 0, 0}));
}

}  // namespace
}  // namespace escrow::test
