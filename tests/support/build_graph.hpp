// SPDX-License-Identifier: Apache-2.0
// Small graphs for tests, built by hand, and edges that do not wait for the end of a kernel.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <vector>

#include "handles.hpp"
#include "kernels.hpp"
#include "status.hpp"

namespace escrow::test {

/// Adds `call` behind `behind` (or as a root) and returns its node.
inline cudaGraphNode_t add_kernel(cudaGraph_t graph, kernel_call call,
                                  cudaGraphNode_t behind = nullptr) {
  cudaKernelNodeParams const params = call.params();
  cudaGraphNode_t node = nullptr;
  must(cudaGraphAddKernelNode(&node, graph, behind == nullptr ? nullptr : &behind,
                              behind == nullptr ? 0 : 1, &params));
  return node;
}

/// A graph that runs `calls` one after the other.
[[nodiscard]] inline owned_graph chain(std::vector<kernel_call> const& calls) {
  owned_graph graph = make_graph();
  cudaGraphNode_t last = nullptr;
  for (kernel_call const& call : calls) last = add_kernel(graph, call, last);
  return graph;
}

/// A graph of one kernel that does nothing.
[[nodiscard]] inline owned_graph tiny_graph() {
  return chain({tiny_call()});
}

/// Adds a copy of `child` as a child node and returns the node.
inline cudaGraphNode_t add_child(cudaGraph_t graph, cudaGraph_t child) {
  cudaGraphNode_t node = nullptr;
  must(cudaGraphAddChildGraphNode(&node, graph, nullptr, 0, child));
  return node;
}

/// The graph that a child node holds.
[[nodiscard]] inline cudaGraph_t embedded_graph(cudaGraphNode_t child) {
  cudaGraph_t result = nullptr;
  must(cudaGraphChildGraphNodeGetGraph(child, &result));
  return result;
}

/// Adds an IF node whose condition is true at each launch and returns its empty body.
inline cudaGraph_t add_conditional(cudaGraph_t graph) {
  cudaGraphConditionalHandle condition{};
  must(cudaGraphConditionalHandleCreate(&condition, graph, 1, cudaGraphCondAssignDefault));
  cudaGraphNodeParams params{};
  params.type = cudaGraphNodeTypeConditional;
  params.conditional.handle = condition;
  params.conditional.type = cudaGraphCondTypeIf;
  params.conditional.size = 1;
  cudaGraphNode_t node = nullptr;
  must(cudaGraphAddNode(&node, graph, nullptr, nullptr, 0, &params));
  return params.conditional.phGraph_out[0];
}

[[nodiscard]] inline std::size_t node_count(cudaGraph_t graph) {
  std::size_t result = 0;
  must(cudaGraphGetNodes(graph, nullptr, &result));
  return result;
}

[[nodiscard]] inline std::size_t edge_count(cudaGraph_t graph) {
  std::size_t result = 0;
  must(cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, &result));
  return result;
}

[[nodiscard]] constexpr cudaGraphEdgeData edge_of(unsigned char port, unsigned char type) {
  cudaGraphEdgeData edge{};
  edge.from_port = port;
  edge.type = type;
  return edge;
}

inline constexpr cudaGraphEdgeData full_edge{};
/// Waits until all blocks of the kernel have begun.
inline constexpr cudaGraphEdgeData launch_completion_edge =
    edge_of(cudaGraphKernelNodePortLaunchCompletion, cudaGraphDependencyTypeDefault);
/// The same for a kernel that synchronizes with the end of the first one itself.
inline constexpr cudaGraphEdgeData block_start_edge =
    edge_of(cudaGraphKernelNodePortLaunchCompletion, cudaGraphDependencyTypeProgrammatic);
/// Waits until all blocks of the kernel have triggered.
inline constexpr cudaGraphEdgeData trigger_edge =
    edge_of(cudaGraphKernelNodePortProgrammatic, cudaGraphDependencyTypeProgrammatic);
/// All that CUDA knows.
inline constexpr std::array early_edges{launch_completion_edge, block_start_edge, trigger_edge};

[[nodiscard]] inline bool is_same(cudaGraphEdgeData const& one, cudaGraphEdgeData const& other) {
  return one.from_port == other.from_port && one.to_port == other.to_port && one.type == other.type;
}

/// Lets a kernel begin when the kernel in front of it has triggered.
[[nodiscard]] inline cudaLaunchAttribute programmatic_attribute() {
  return attribute_of(cudaLaunchAttributeProgrammaticStreamSerialization, 1);
}

/// A kernel that does nothing, launched so.
[[nodiscard]] inline cudaError_t launch_programmatically(cudaStream_t stream) {
  return tiny_call().launch(stream, 1, {programmatic_attribute()});
}

/// What the next operation on a capturing stream comes after.
struct placed_edges {
  std::vector<cudaGraphNode_t> nodes;
  std::vector<cudaGraphEdgeData> edges;
};

[[nodiscard]] inline placed_edges frontier_in(cudaStream_t capturing) {
  cudaStreamCaptureStatus status{};
  cudaGraphNode_t const* nodes = nullptr;
  cudaGraphEdgeData const* edges = nullptr;
  std::size_t count = 0;
  must(cudaStreamGetCaptureInfo(capturing, &status, nullptr, nullptr, &nodes, &edges, &count));
  return {{nodes, nodes + count}, {edges, edges + count}};
}

/// Makes what comes next on a capturing stream wait for no more of the kernels in front of it than
/// `edge` says, as it is behind an event that such a kernel was launched with.
inline void wait_early(cudaStream_t capturing, cudaGraphEdgeData const& edge) {
  placed_edges at = frontier_in(capturing);
  std::vector<cudaGraphEdgeData> const early(at.nodes.size(), edge);
  must(cudaStreamUpdateCaptureDependencies(capturing, at.nodes.data(), early.data(),
                                           at.nodes.size(), cudaStreamSetCaptureDependencies));
}

}  // namespace escrow::test
