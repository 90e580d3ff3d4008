// Conditional nodes in tests: a handle, a node and the node's bodies.
#pragma once

#include <cuda_runtime_api.h>

#include <vector>

#include "status.hpp"

namespace escrow::test {

[[nodiscard]] inline cudaGraphConditionalHandle make_condition(
    cudaGraph_t graph, unsigned value, unsigned flags = cudaGraphCondAssignDefault) {
  cudaGraphConditionalHandle result{};
  must(cudaGraphConditionalHandleCreate(&result, graph, value, flags));
  return result;
}

[[nodiscard]] inline cudaGraphNodeParams conditional_params(cudaGraphConditionalHandle condition,
                                                            cudaGraphConditionalNodeType type,
                                                            unsigned bodies) {
  cudaGraphNodeParams result{};
  result.type = cudaGraphNodeTypeConditional;
  result.conditional.handle = condition;
  result.conditional.type = type;
  result.conditional.size = bodies;
  return result;
}

struct conditional_node {
  cudaGraphNode_t node = nullptr;
  std::vector<cudaGraph_t> bodies;
};

/// Adds a conditional node behind `behind` (or as a root).
[[nodiscard]] inline conditional_node add_conditional_node(cudaGraph_t graph,
                                                           cudaGraphConditionalHandle condition,
                                                           cudaGraphConditionalNodeType type,
                                                           unsigned bodies = 1,
                                                           cudaGraphNode_t behind = nullptr) {
  auto params = conditional_params(condition, type, bodies);
  conditional_node result;
  must(cudaGraphAddNode(&result.node, graph, behind == nullptr ? nullptr : &behind, nullptr,
                        behind == nullptr ? 0 : 1, &params));
  cudaGraph_t const* const made = params.conditional.phGraph_out;
  result.bodies.assign(made, made + bodies);
  return result;
}

}  // namespace escrow::test
