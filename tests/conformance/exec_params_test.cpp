// Nodes of execs: set again for the launches to come, refused where CUDA cannot follow, disabled.
#include <gtest/gtest.h>

#include <atomic>
#include <vector>

#include "build_graph.hpp"
#include "conditional_nodes.hpp"
#include "graph_nodes.hpp"
#include "handles.hpp"
#include "memory.hpp"

namespace escrow::test {
namespace {

void CUDART_CB add_ten(void* counter) {
  // Release: pairs with the acquire of whoever reads the count.
  static_cast<std::atomic<int>*>(counter)->fetch_add(10, std::memory_order_release);
}

class ExecParams : public testing::Test {
 protected:
  owned_stream stream = make_stream();
  owned_graph graph = make_graph();
  device_ints memory{4};
  pinned_ints pinned{4};
};

TEST_F(ExecParams, OfAKernelConcernLaterLaunchesAndNotTheGraph) {
  pinned_flag flag;
  auto* const held = add_kernel(graph, wait_flag_call(flag.get()));
  auto* const node = add_kernel(graph, add_call(pinned.data(), 1), held);
  owned_exec const exec = instantiate(graph);
  must(cudaGraphLaunch(exec, stream));
  auto call = add_call(pinned.data(), 10);
  auto const params = call.params();
  EXPECT_EQ(cudaGraphExecKernelNodeSetParams(exec, node, &params), cudaSuccess);
  flag.raise();
  must(cudaStreamSynchronize(stream));
  EXPECT_EQ(pinned.load(), 1);
  run(exec, stream);
  EXPECT_EQ(pinned.load(), 11);
  cudaKernelNodeParams read{};
  must(cudaGraphKernelNodeGetParams(node, &read));
  EXPECT_EQ(*static_cast<int*>(read.kernelParams[1]), 1);
}

TEST_F(ExecParams, OfAKernelInABodyConcernLaterLaunches) {
  pinned_flag flag;
  auto* const held = add_kernel(graph, wait_flag_call(flag.get()));
  auto const made =
      add_conditional_node(graph, make_condition(graph, 1), cudaGraphCondTypeIf, 1, held);
  auto* const node = add_kernel(made.bodies[0], add_call(pinned.data(), 1));
  owned_exec const exec = instantiate(graph);
  must(cudaGraphLaunch(exec, stream));
  auto call = add_call(pinned.data(), 10);
  auto const params = call.params();
  EXPECT_EQ(cudaGraphExecKernelNodeSetParams(exec, node, &params), cudaSuccess);
  flag.raise();
  must(cudaStreamSynchronize(stream));
  EXPECT_EQ(pinned.load(), 1);
  run(exec, stream);
  EXPECT_EQ(pinned.load(), 11);
}

TEST_F(ExecParams, OfAFillMayHaveAnotherValueAndAddress) {
  auto* const node = add_fill(graph, fill_params(memory.data(), 3, 4, 1));
  owned_exec const exec = instantiate(graph);
  auto params = fill_params(memory.data() + 1, 5, 4, 1);
  EXPECT_EQ(cudaGraphExecMemsetNodeSetParams(exec, node, &params), cudaSuccess);
  run(exec, stream);
  EXPECT_EQ(memory.read(), (std::vector<int>{0, 5, 0, 0}));
  params.width = 0;
  EXPECT_NE(tried(cudaGraphExecMemsetNodeSetParams(exec, node, &params)), cudaSuccess);
}

TEST_F(ExecParams, OfAFillOfRowsMayNotHaveOtherDimensions) {
  auto* const node = add_fill(graph, fill_params(memory.data(), 3, 4, 1, 2, 8));
  owned_exec const exec = instantiate(graph);
  auto const higher = fill_params(memory.data(), 3, 4, 1, 3, 8);
  auto const flat = fill_params(memory.data(), 3, 4, 1);
  auto const moved = fill_params(memory.data() + 1, 4, 4, 1, 2, 8);
  EXPECT_NE(tried(cudaGraphExecMemsetNodeSetParams(exec, node, &higher)), cudaSuccess);
  EXPECT_NE(tried(cudaGraphExecMemsetNodeSetParams(exec, node, &flat)), cudaSuccess);
  EXPECT_EQ(tried(cudaGraphExecMemsetNodeSetParams(exec, node, &moved)), cudaSuccess);
  run(exec, stream);
  EXPECT_EQ(memory.read(), (std::vector<int>{0, 4, 0, 4}));
}

TEST_F(ExecParams, OfACopyMayHaveOtherAddressesInTheSameKindsOfMemory) {
  auto* const node = add_copy(graph, pinned.data(), memory.data(), sizeof(int));
  owned_exec const exec = instantiate(graph);
  must(launch_fill(stream, memory.data() + 2, 1, 6));
  EXPECT_EQ(cudaGraphExecMemcpyNodeSetParams1D(exec, node, pinned.data() + 1, memory.data() + 2,
                                               sizeof(int), cudaMemcpyDefault),
            cudaSuccess);
  run(exec, stream);
  EXPECT_EQ(pinned.load(0), 0);
  EXPECT_EQ(pinned.load(1), 6);
  auto const again = copy_params(pinned.data() + 3, 4, memory.data() + 2, 4, 4, 1);
  EXPECT_EQ(cudaGraphExecMemcpyNodeSetParams(exec, node, &again), cudaSuccess);
  run(exec, stream);
  EXPECT_EQ(pinned.load(3), 6);
}

TEST_F(ExecParams, OfACopyMayHaveOtherKindsOfMemoryAndAnotherSize) {
  int const plain[] = {7, 8};
  auto* const node = add_copy(graph, pinned.data(), memory.data(), sizeof(int));
  owned_exec const exec = instantiate(graph);
  auto const run_as = [&](void* to, void const* from, std::size_t bytes) {
    EXPECT_EQ(
        tried(cudaGraphExecMemcpyNodeSetParams1D(exec, node, to, from, bytes, cudaMemcpyDefault)),
        cudaSuccess);
    run(exec, stream);
  };
  pinned.store(0, 5);
  run_as(memory.data(), pinned.data(), sizeof(int));
  EXPECT_EQ(memory.read(), (std::vector<int>{5, 0, 0, 0}));
  run_as(memory.data(), plain, 2 * sizeof(int));
  EXPECT_EQ(memory.read(), (std::vector<int>{7, 8, 0, 0}));
  run_as(memory.data() + 2, memory.data(), 2 * sizeof(int));
  EXPECT_EQ(memory.read(), (std::vector<int>{7, 8, 7, 8}));
  EXPECT_EQ(pinned.load(), 5);
}

TEST_F(ExecParams, OfACopyMayNotHaveRowsNoBytesOrAnExplicitKind) {
  auto* const node = add_copy(graph, pinned.data(), memory.data(), sizeof(int));
  owned_exec const exec = instantiate(graph);
  auto const set = [&](void* to, void* from, std::size_t bytes, cudaMemcpyKind kind) {
    return tried(cudaGraphExecMemcpyNodeSetParams1D(exec, node, to, from, bytes, kind));
  };
  EXPECT_EQ(set(pinned.data(), memory.data(), 0, cudaMemcpyDefault), cudaErrorInvalidValue);
  EXPECT_EQ(set(memory.data(), pinned.data(), 4, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  auto const rows = copy_params(pinned.data(), 8, memory.data(), 8, 4, 2);
  EXPECT_EQ(tried(cudaGraphExecMemcpyNodeSetParams(exec, node, &rows)), cudaErrorInvalidValue);
}

TEST_F(ExecParams, OfAHostFunctionAndOfEventsMayBeAnyOther) {
  std::atomic<int> counter{0};
  owned_event const first = make_event();
  owned_event const second = make_event();
  cudaHostNodeParams params{&add_ten, nullptr};
  cudaGraphNode_t host = nullptr;
  cudaGraphNode_t record = nullptr;
  cudaGraphNode_t wait = nullptr;
  must(cudaGraphAddEventWaitNode(&wait, graph, nullptr, 0, second));
  must(cudaGraphAddHostNode(&host, graph, &wait, 1, &params));
  must(cudaGraphAddEventRecordNode(&record, graph, &host, 1, first));
  owned_exec const exec = instantiate(graph);
  params.userData = &counter;
  EXPECT_EQ(cudaGraphExecHostNodeSetParams(exec, host, &params), cudaSuccess);
  EXPECT_EQ(cudaGraphExecEventWaitNodeSetEvent(exec, wait, first), cudaSuccess);
  EXPECT_EQ(cudaGraphExecEventRecordNodeSetEvent(exec, record, second), cudaSuccess);
  pinned_flag flag;
  owned_stream const other = make_stream();
  must(launch_wait_flag(other, flag.get()));
  must(cudaEventRecord(first, other));
  must(cudaGraphLaunch(exec, stream));
  EXPECT_EQ(cudaEventQuery(second), cudaErrorNotReady);
  EXPECT_EQ(counter.load(std::memory_order_acquire), 0);
  flag.raise();
  must(cudaStreamSynchronize(stream));
  EXPECT_EQ(cudaEventQuery(second), cudaSuccess);
  EXPECT_EQ(counter.load(std::memory_order_acquire), 10);
}

TEST_F(ExecParams, OfAChildMustHaveItsShape) {
  owned_graph const child = chain({add_call(pinned.data(), 1)});
  auto* const node = add_child(graph, child);
  owned_exec const exec = instantiate(graph);
  owned_graph const other = chain({add_call(pinned.data(), 10)});
  owned_graph const longer = chain({tiny_call(), tiny_call()});
  EXPECT_EQ(cudaGraphExecChildGraphNodeSetParams(exec, node, other), cudaSuccess);
  EXPECT_NE(tried(cudaGraphExecChildGraphNodeSetParams(exec, node, longer)), cudaSuccess);
  run(exec, stream);
  EXPECT_EQ(pinned.load(), 10);
}

TEST_F(ExecParams, AreSetByTheCallForAllKindsAsWell) {
  auto* const node = add_fill(graph, fill_params(memory.data(), 3, 4, 1));
  owned_exec const exec = instantiate(graph);
  auto p = params_of(cudaGraphNodeTypeMemset);
  p.memset = {memory.data(), 0, 9, 4, 1, 1};
  EXPECT_EQ(cudaGraphExecNodeSetParams(exec, node, &p), cudaSuccess);
  run(exec, stream);
  EXPECT_EQ(memory.read()[0], 9);
  p = params_of(cudaGraphNodeTypeEmpty);
  EXPECT_NE(tried(cudaGraphExecNodeSetParams(exec, node, &p)), cudaSuccess);
}

TEST_F(ExecParams, AreRefusedForANodeThatTheExecDoesNotHave) {
  add_fill(graph, fill_params(memory.data(), 3, 4, 1));
  owned_exec const exec = instantiate(graph);
  auto* const later = add_kernel(graph, tiny_call());
  auto call = tiny_call();
  auto const params = call.params();
  EXPECT_NE(tried(cudaGraphExecKernelNodeSetParams(exec, later, &params)), cudaSuccess);
}

TEST_F(ExecParams, AnUpdateOfTheWholeMayTurnACopyRound) {
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
  EXPECT_EQ(memory.read(), (std::vector<int>{0, 6, 0, 0}));
}

TEST_F(ExecParams, ADisabledNodeDoesNothingUntilItIsEnabled) {
  auto* const first = add_kernel(graph, add_call(pinned.data(), 1));
  auto* const second = add_kernel(graph, add_call(pinned.data() + 1, 1), first);
  owned_exec const exec = instantiate(graph);
  unsigned enabled = 0;
  must(cudaGraphNodeGetEnabled(exec, first, &enabled));
  EXPECT_EQ(enabled, 1U);
  must(cudaGraphNodeSetEnabled(exec, first, 0));
  must(cudaGraphNodeGetEnabled(exec, first, &enabled));
  EXPECT_EQ(enabled, 0U);
  must(cudaGraphNodeGetEnabled(exec, second, &enabled));
  EXPECT_EQ(enabled, 1U);
  run(exec, stream);
  EXPECT_EQ(pinned.load(0), 0);
  EXPECT_EQ(pinned.load(1), 1);
  must(cudaGraphNodeSetEnabled(exec, first, 1));
  run(exec, stream);
  EXPECT_EQ(pinned.load(0), 1);
}

TEST_F(ExecParams, OnlyKernelsFillsAndCopiesCanBeDisabled) {
  auto* const empty = add_any(graph, params_of(cudaGraphNodeTypeEmpty));
  auto* const fill = add_fill(graph, fill_params(memory.data(), 3, 4, 1));
  owned_exec const exec = instantiate(graph);
  EXPECT_NE(tried(cudaGraphNodeSetEnabled(exec, empty, 0)), cudaSuccess);
  EXPECT_EQ(tried(cudaGraphNodeSetEnabled(exec, fill, 0)), cudaSuccess);
}

}  // namespace
}  // namespace escrow::test
