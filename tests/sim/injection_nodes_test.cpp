// Each call that builds, reads or changes nodes can be failed by its name, and then does nothing.
#include <gtest/gtest.h>

#include <array>
#include <ostream>
#include <string>

#include "build_graph.hpp"
#include "fresh_runtime.hpp"
#include "handles.hpp"
#include "kernels.hpp"
#include "memory.hpp"

namespace escrow::test {
namespace {

void CUDART_CB do_nothing(void*) {}

// A graph with a node of most kinds, an exec of it, and parameters for all of them.
struct nodes {
  device_ints memory{4};
  pinned_ints pinned{4};
  owned_event event = make_event();
  owned_graph graph = make_graph();
  owned_graph child = tiny_graph();
  owned_graph with_memory = make_graph();
  cudaMemsetParams fill{memory.data(), 0, 1, 4, 4, 1};
  cudaMemcpy3DParms copy{};
  cudaHostNodeParams host{&do_nothing, nullptr};
  cudaMemAllocNodeParams alloc{};
  cudaGraphNodeParams any{};
  cudaGraphNode_t fill_node = nullptr;
  cudaGraphNode_t copy_node = nullptr;
  cudaGraphNode_t host_node = nullptr;
  cudaGraphNode_t record_node = nullptr;
  cudaGraphNode_t wait_node = nullptr;
  cudaGraphNode_t child_node = add_child(graph, child);
  cudaGraphNode_t alloc_node = nullptr;
  cudaGraphNode_t free_node = nullptr;
  cudaGraphNode_t out = nullptr;
  cudaEvent_t seen = nullptr;
  void* address = nullptr;
  // Memory of a graph that does not free it.
  void* left = nullptr;
  unsigned enabled = 0;
  cudaGraphConditionalHandle condition{};
  cudaPointerAttributes attributes{};
  owned_exec exec;

  nodes() {
    copy.dstPtr = {pinned.data(), 16, 16, 1};
    copy.srcPtr = {memory.data(), 16, 16, 1};
    copy.extent = {16, 1, 1};
    copy.kind = cudaMemcpyDefault;
    alloc.poolProps.allocType = cudaMemAllocationTypePinned;
    alloc.poolProps.location.type = cudaMemLocationTypeDevice;
    alloc.bytesize = 16;
    any.type = cudaGraphNodeTypeMemset;
    any.memset = {memory.data(), 0, 1, 4, 4, 1};
    must(cudaGraphAddMemsetNode(&fill_node, graph, nullptr, 0, &fill));
    must(cudaGraphAddMemcpyNode(&copy_node, graph, nullptr, 0, &copy));
    must(cudaGraphAddHostNode(&host_node, graph, nullptr, 0, &host));
    must(cudaGraphAddEventRecordNode(&record_node, graph, nullptr, 0, event));
    must(cudaGraphAddEventWaitNode(&wait_node, graph, nullptr, 0, event));
    must(cudaGraphAddMemAllocNode(&alloc_node, with_memory, nullptr, 0, &alloc));
    left = alloc.dptr;
    must(cudaGraphAddMemAllocNode(&alloc_node, with_memory, nullptr, 0, &alloc));
    must(cudaGraphAddMemFreeNode(&free_node, with_memory, &alloc_node, 1, alloc.dptr));
    exec = instantiate(graph);
  }
};

struct named_call {
  char const* name;
  cudaError_t (*make)(nodes&);

  friend void PrintTo(named_call const& call, std::ostream* out) { *out << call.name; }
};

constexpr std::array calls{
    named_call{
        "cudaGraphAddMemcpyNode",
        [](nodes& n) { return cudaGraphAddMemcpyNode(&n.out, n.graph, nullptr, 0, &n.copy); }},
    named_call{"cudaGraphAddMemAllocNode",
               [](nodes& n) {
                 return cudaGraphAddMemAllocNode(&n.out, n.with_memory, nullptr, 0, &n.alloc);
               }},
    named_call{
        "cudaGraphAddMemFreeNode",
        [](nodes& n) { return cudaGraphAddMemFreeNode(&n.out, n.graph, nullptr, 0, n.left); }},
    named_call{"cudaGraphMemsetNodeGetParams",
               [](nodes& n) { return cudaGraphMemsetNodeGetParams(n.fill_node, &n.fill); }},
    named_call{"cudaGraphMemsetNodeSetParams",
               [](nodes& n) { return cudaGraphMemsetNodeSetParams(n.fill_node, &n.fill); }},
    named_call{"cudaGraphMemcpyNodeGetParams",
               [](nodes& n) { return cudaGraphMemcpyNodeGetParams(n.copy_node, &n.copy); }},
    named_call{"cudaGraphMemcpyNodeSetParams",
               [](nodes& n) { return cudaGraphMemcpyNodeSetParams(n.copy_node, &n.copy); }},
    named_call{"cudaGraphMemcpyNodeSetParams1D",
               [](nodes& n) {
                 return cudaGraphMemcpyNodeSetParams1D(n.copy_node, n.pinned.data(),
                                                       n.memory.data(), 4, cudaMemcpyDefault);
               }},
    named_call{"cudaGraphHostNodeGetParams",
               [](nodes& n) { return cudaGraphHostNodeGetParams(n.host_node, &n.host); }},
    named_call{"cudaGraphHostNodeSetParams",
               [](nodes& n) { return cudaGraphHostNodeSetParams(n.host_node, &n.host); }},
    named_call{"cudaGraphEventRecordNodeGetEvent",
               [](nodes& n) { return cudaGraphEventRecordNodeGetEvent(n.record_node, &n.seen); }},
    named_call{"cudaGraphEventRecordNodeSetEvent",
               [](nodes& n) { return cudaGraphEventRecordNodeSetEvent(n.record_node, n.event); }},
    named_call{"cudaGraphEventWaitNodeGetEvent",
               [](nodes& n) { return cudaGraphEventWaitNodeGetEvent(n.wait_node, &n.seen); }},
    named_call{"cudaGraphEventWaitNodeSetEvent",
               [](nodes& n) { return cudaGraphEventWaitNodeSetEvent(n.wait_node, n.event); }},
    named_call{"cudaGraphMemAllocNodeGetParams",
               [](nodes& n) { return cudaGraphMemAllocNodeGetParams(n.alloc_node, &n.alloc); }},
    named_call{"cudaGraphMemFreeNodeGetParams",
               [](nodes& n) { return cudaGraphMemFreeNodeGetParams(n.free_node, &n.address); }},
    named_call{"cudaGraphNodeSetParams",
               [](nodes& n) { return cudaGraphNodeSetParams(n.fill_node, &n.any); }},
    named_call{
        "cudaGraphExecMemsetNodeSetParams",
        [](nodes& n) { return cudaGraphExecMemsetNodeSetParams(n.exec, n.fill_node, &n.fill); }},
    named_call{
        "cudaGraphExecMemcpyNodeSetParams",
        [](nodes& n) { return cudaGraphExecMemcpyNodeSetParams(n.exec, n.copy_node, &n.copy); }},
    named_call{"cudaGraphExecMemcpyNodeSetParams1D",
               [](nodes& n) {
                 return cudaGraphExecMemcpyNodeSetParams1D(n.exec, n.copy_node, n.pinned.data(),
                                                           n.memory.data(), 4, cudaMemcpyDefault);
               }},
    named_call{
        "cudaGraphExecHostNodeSetParams",
        [](nodes& n) { return cudaGraphExecHostNodeSetParams(n.exec, n.host_node, &n.host); }},
    named_call{"cudaGraphExecEventRecordNodeSetEvent",
               [](nodes& n) {
                 return cudaGraphExecEventRecordNodeSetEvent(n.exec, n.record_node, n.event);
               }},
    named_call{
        "cudaGraphExecEventWaitNodeSetEvent",
        [](nodes& n) { return cudaGraphExecEventWaitNodeSetEvent(n.exec, n.wait_node, n.event); }},
    named_call{"cudaGraphExecNodeSetParams",
               [](nodes& n) { return cudaGraphExecNodeSetParams(n.exec, n.fill_node, &n.any); }},
    named_call{"cudaGraphNodeSetEnabled",
               [](nodes& n) { return cudaGraphNodeSetEnabled(n.exec, n.fill_node, 0); }},
    named_call{"cudaGraphNodeGetEnabled",
               [](nodes& n) { return cudaGraphNodeGetEnabled(n.exec, n.fill_node, &n.enabled); }},
    named_call{
        "cudaGraphConditionalHandleCreate",
        [](nodes& n) { return cudaGraphConditionalHandleCreate(&n.condition, n.graph, 0, 0); }},
    named_call{
        "cudaGraphAddNode",
        [](nodes& n) { return cudaGraphAddNode(&n.out, n.graph, nullptr, nullptr, 0, &n.any); }},
    named_call{"cudaGraphDestroyNode", [](nodes& n) { return cudaGraphDestroyNode(n.host_node); }},
    named_call{"cudaGraphDebugDotPrint",
               [](nodes& n) { return cudaGraphDebugDotPrint(n.graph, "/dev/null", 0); }},
    named_call{"cudaPointerGetAttributes",
               [](nodes& n) { return cudaPointerGetAttributes(&n.attributes, n.memory.data()); }},
    named_call{"cudaMemcpy2D",
               [](nodes& n) {
                 return cudaMemcpy2D(n.pinned.data(), 8, n.memory.data(), 8, 8, 2,
                                     cudaMemcpyDefault);
               }},
    named_call{"cudaMemcpy2DAsync",
               [](nodes& n) {
                 return cudaMemcpy2DAsync(n.pinned.data(), 8, n.memory.data(), 8, 8, 2,
                                          cudaMemcpyDefault, nullptr);
               }},
    named_call{"cudaMemset2DAsync",
               [](nodes& n) { return cudaMemset2DAsync(n.memory.data(), 8, 1, 8, 2, nullptr); }},
};

class FailedCall : public fresh_runtime, public testing::WithParamInterface<named_call> {};

TEST_P(FailedCall, ReturnsTheErrorAndWorksAfterThat) {
  nodes all;
  auto const before = sim::alive();
  auto const nodes_before = node_count(all.graph);
  sim::fail_call(GetParam().name, cudaErrorUnknown);
  EXPECT_EQ(GetParam().make(all), cudaErrorUnknown);
  EXPECT_EQ(sim::alive(), before);
  EXPECT_EQ(node_count(all.graph), nodes_before);
  EXPECT_EQ(cudaGetLastError(), cudaErrorUnknown);
  EXPECT_EQ(GetParam().make(all), cudaSuccess);
}

INSTANTIATE_TEST_SUITE_P(Nodes, FailedCall, testing::ValuesIn(calls),
                         [](auto const& one) { return std::string{one.param.name}; });

}  // namespace
}  // namespace escrow::test
