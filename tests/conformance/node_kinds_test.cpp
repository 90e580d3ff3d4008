// Graphs built by hand of every kind of node: what each does when it runs, by its own call and by
// the one for all kinds.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstring>
#include <vector>

#include "build_graph.hpp"
#include "graph_nodes.hpp"
#include "handles.hpp"
#include "memory.hpp"

namespace escrow::test {
namespace {

void CUDART_CB count_up(void* counter) {
  // Release: whoever sees the count sees what was done before.
  static_cast<std::atomic<int>*>(counter)->fetch_add(1, std::memory_order_release);
}

std::vector<unsigned char> bytes_of(device_ints const& memory) {
  auto const ints = memory.read();
  std::vector<unsigned char> result(ints.size() * sizeof(int));
  std::memcpy(result.data(), ints.data(), result.size());
  return result;
}

class NodeKinds : public testing::Test {
 protected:
  owned_stream stream = make_stream();
  owned_graph graph = make_graph();
};

TEST_F(NodeKinds, AFillWritesElementsOfOneTwoOrFourBytes) {
  device_ints const memory{3};
  auto* const bytes = reinterpret_cast<unsigned char*>(memory.data());
  auto* const first = add_fill(graph, fill_params(bytes, 0x11, 1, 3));
  auto* const second = add_fill(graph, fill_params(bytes + 4, 0x3322, 2, 2), first);
  add_fill(graph, fill_params(bytes + 8, 0x77665544, 4, 1), second);
  run(graph, stream);
  EXPECT_EQ(bytes_of(memory), (std::vector<unsigned char>{0x11, 0x11, 0x11, 0, 0x22, 0x33, 0x22,
                                                          0x33, 0x44, 0x55, 0x66, 0x77}));
}

TEST_F(NodeKinds, AFillOfRowsLeavesWhatIsBetweenThem) {
  device_ints const memory{8};
  add_fill(graph, fill_params(memory.data() + 1, 7, 4, 2, 2, 4 * sizeof(int)));
  run(graph, stream);
  EXPECT_EQ(memory.read(), (std::vector<int>{0, 7, 7, 0, 0, 7, 7, 0}));
}

TEST_F(NodeKinds, AFillOfAnOddElementSizeIsRefused) {
  device_ints const memory;
  cudaGraphNode_t node = nullptr;
  auto const params = fill_params(memory.data(), 1, 3, 1);
  EXPECT_EQ(tried(cudaGraphAddMemsetNode(&node, graph, nullptr, 0, &params)),
            cudaErrorInvalidValue);
}

TEST_F(NodeKinds, CopiesGoFromAndToTheHostWithTheirKindGivenOrInferred) {
  std::vector<int> const in{1, 2, 3, 4};
  std::vector<int> out(4);
  device_ints const here{4};
  device_ints const there{4};
  constexpr std::size_t size = 4 * sizeof(int);
  cudaGraphNode_t up = nullptr;
  must(cudaGraphAddMemcpyNode1D(&up, graph, nullptr, 0, here.data(), in.data(), size,
                                cudaMemcpyHostToDevice));
  auto* const across = add_copy(graph, there.data(), here.data(), size, up);
  cudaGraphNode_t down = nullptr;
  must(cudaGraphAddMemcpyNode1D(&down, graph, &across, 1, out.data(), there.data(), size,
                                cudaMemcpyDeviceToHost));
  run(graph, stream);
  EXPECT_EQ(out, in);
}

TEST_F(NodeKinds, ACopyOfRowsKeepsToPitchesAndPositions) {
  device_ints const from{8};
  device_ints const to{6};
  must(launch_fill(stream, from.data(), 8, 3));
  must(launch_fill(stream, from.data() + 5, 1, 9));
  // Two rows of two out of rows of four, into rows of three at column 1.
  auto params =
      copy_params(to.data(), 3 * sizeof(int), from.data(), 4 * sizeof(int), 2 * sizeof(int), 2);
  params.srcPos.x = sizeof(int);
  params.dstPos.x = sizeof(int);
  cudaGraphNode_t node = nullptr;
  must(cudaGraphAddMemcpyNode(&node, graph, nullptr, 0, &params));
  run(graph, stream);
  EXPECT_EQ(to.read(), (std::vector<int>{0, 3, 3, 0, 9, 3}));
}

TEST_F(NodeKinds, ACopyOfRowsWiderThanTheirPitchIsRefused) {
  device_ints const memory{8};
  auto const params = copy_params(memory.data(), 4, memory.data() + 4, 4, 8, 2);
  cudaGraphNode_t node = nullptr;
  EXPECT_NE(tried(cudaGraphAddMemcpyNode(&node, graph, nullptr, 0, &params)), cudaSuccess);
}

TEST_F(NodeKinds, AHostFunctionIsCalledOnceALaunch) {
  std::atomic<int> calls{0};
  cudaHostNodeParams const params{&count_up, &calls};
  cudaGraphNode_t node = nullptr;
  must(cudaGraphAddHostNode(&node, graph, nullptr, 0, &params));
  owned_exec const exec = instantiate(graph);
  run(exec, stream);
  run(exec, stream);
  // Acquire: pairs with the function's release.
  EXPECT_EQ(calls.load(std::memory_order_acquire), 2);
}

TEST_F(NodeKinds, AnEventWaitOfOneGraphWaitsForTheRecordOfAnother) {
  pinned_flag flag;
  pinned_ints cells{2};
  owned_event const event = make_event();
  owned_stream const other = make_stream();
  auto* const held = add_kernel(graph, wait_flag_call(flag.get()));
  auto* const written = add_kernel(graph, add_call(cells.data(), 5), held);
  cudaGraphNode_t record = nullptr;
  must(cudaGraphAddEventRecordNode(&record, graph, &written, 1, event));
  owned_graph const second = make_graph();
  cudaGraphNode_t wait = nullptr;
  must(cudaGraphAddEventWaitNode(&wait, second, nullptr, 0, event));
  add_kernel(second, copy_call(cells.data() + 1, cells.data(), 1), wait);
  owned_exec const recorder = instantiate(graph);
  owned_exec const waiter = instantiate(second);
  must(cudaGraphLaunch(recorder, stream));
  must(cudaGraphLaunch(waiter, other));
  EXPECT_EQ(cudaStreamQuery(other), cudaErrorNotReady);
  flag.raise();
  must(cudaStreamSynchronize(other));
  EXPECT_EQ(cells.load(1), 5);
  must(cudaStreamSynchronize(stream));
}

TEST_F(NodeKinds, TheCallForAllKindsMakesEachOfThem) {
  device_ints const memory{4};
  pinned_ints out{4};
  std::atomic<int> calls{0};
  owned_event const event = make_event();
  owned_graph const child = chain({add_call(memory.data() + 1, 1)});
  auto p = params_of(cudaGraphNodeTypeEmpty);
  auto* last = add_any(graph, p);
  p = params_of(cudaGraphNodeTypeMemset);
  p.memset = {memory.data(), 0, 6, 4, 4, 1};
  last = add_any(graph, p, last);
  p = params_of(cudaGraphNodeTypeKernel);
  auto call = add_call(memory.data(), 1);
  auto const kernel = call.params();
  p.kernel.func = kernel.func;
  p.kernel.gridDim = kernel.gridDim;
  p.kernel.blockDim = kernel.blockDim;
  p.kernel.kernelParams = kernel.kernelParams;
  last = add_any(graph, p, last);
  p = params_of(cudaGraphNodeTypeGraph);
  p.graph.graph = child;
  last = add_any(graph, p, last);
  p = params_of(cudaGraphNodeTypeMemcpy);
  p.memcpy.copyParams = copy_params(out.data(), 16, memory.data(), 16, 16, 1);
  last = add_any(graph, p, last);
  p = params_of(cudaGraphNodeTypeHost);
  p.host.fn = &count_up;
  p.host.userData = &calls;
  last = add_any(graph, p, last);
  p = params_of(cudaGraphNodeTypeEventRecord);
  p.eventRecord.event = event;
  last = add_any(graph, p, last);
  p = params_of(cudaGraphNodeTypeWaitEvent);
  p.eventWait.event = event;
  last = add_any(graph, p, last);
  EXPECT_EQ(node_count(graph), 8U);
  EXPECT_EQ(edge_count(graph), 7U);
  run(graph, stream);
  EXPECT_EQ(out.load(0), 7);
  EXPECT_EQ(out.load(1), 7);
  EXPECT_EQ(out.load(2), 6);
  EXPECT_EQ(calls.load(std::memory_order_acquire), 1);
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess);
}

TEST_F(NodeKinds, NodesOfMostKindsRunInAChildGraph) {
  device_ints const memory{2};
  pinned_ints out{2};
  std::atomic<int> calls{0};
  owned_graph const child = make_graph();
  auto* const filled = add_fill(child, fill_params(memory.data(), 4, 4, 2));
  auto* const copied = add_copy(child, out.data(), memory.data(), 2 * sizeof(int), filled);
  cudaHostNodeParams const host{&count_up, &calls};
  cudaGraphNode_t called = nullptr;
  must(cudaGraphAddHostNode(&called, child, &copied, 1, &host));
  add_child(graph, child);
  run(graph, stream);
  EXPECT_EQ(out.load(1), 4);
  EXPECT_EQ(calls.load(std::memory_order_acquire), 1);
}

TEST_F(NodeKinds, ANodeOfEachKindCanBeDestroyedAndTheRestRuns) {
  device_ints const memory{4};
  owned_event const event = make_event();
  std::atomic<int> calls{0};
  std::vector<cudaGraphNode_t> doomed{add_fill(graph, fill_params(memory.data(), 1, 4, 4)),
                                      add_copy(graph, memory.data(), memory.data() + 2, 8),
                                      add_kernel(graph, add_call(memory.data(), 1)),
                                      add_child(graph, tiny_graph()),
                                      add_any(graph, params_of(cudaGraphNodeTypeEmpty))};
  cudaGraphNode_t node = nullptr;
  cudaHostNodeParams const host{&count_up, &calls};
  must(cudaGraphAddHostNode(&node, graph, nullptr, 0, &host));
  doomed.push_back(node);
  must(cudaGraphAddEventRecordNode(&node, graph, nullptr, 0, event));
  doomed.push_back(node);
  must(cudaGraphAddEventWaitNode(&node, graph, nullptr, 0, event));
  doomed.push_back(node);
  std::size_t count = 0;
  must(cudaGraphGetNodes(graph, nullptr, &count));
  std::vector<cudaGraphNode_t> all(count);
  must(cudaGraphGetNodes(graph, all.data(), &count));
  auto* const kept = add_kernel(graph, add_call(memory.data() + 3, 5), doomed[0]);
  for (auto* const each : all) EXPECT_EQ(cudaGraphDestroyNode(each), cudaSuccess);
  EXPECT_EQ(node_count(graph), 1U);
  cudaGraphNode_t left = nullptr;
  count = 1;
  must(cudaGraphGetRootNodes(graph, &left, &count));
  EXPECT_EQ(left, kept);
  run(graph, stream);
  EXPECT_EQ(memory.read(), (std::vector<int>{0, 0, 0, 5}));
}

TEST_F(NodeKinds, AGraphThatIsMovedIntoItsParentBelongsToIt) {
  pinned_ints cell;
  owned_graph child = chain({add_call(cell.data(), 1)});
  auto p = params_of(cudaGraphNodeTypeGraph);
  p.graph.graph = child;
  p.graph.ownership = cudaGraphChildGraphOwnershipMove;
  auto* const node = add_any(graph, p);
  EXPECT_EQ(embedded_graph(node), child.get());
  owned_graph const another = make_graph();
  cudaGraphNode_t second = nullptr;
  cudaGraphExec_t exec = nullptr;
  EXPECT_NE(tried(cudaGraphAddNode(&second, another, nullptr, nullptr, 0, &p)), cudaSuccess);
  EXPECT_NE(tried(cudaGraphInstantiate(&exec, child, 0)), cudaSuccess);
  EXPECT_NE(tried(cudaGraphDestroy(child.release())), cudaSuccess);
  run(graph, stream);
  EXPECT_EQ(cell.load(), 1);
}

}  // namespace
}  // namespace escrow::test
