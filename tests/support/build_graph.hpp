// Small graphs for tests, built by hand.
#pragma once

#include <cuda_runtime_api.h>

#include <vector>

#include "handles.hpp"
#include "kernels.hpp"

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
  for (kernel_call const& call : calls) {
    last = add_kernel(graph, call, last);
  }
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

}  // namespace escrow::test
