// SPDX-License-Identifier: Apache-2.0
// A graph with its child graphs.
#pragma once

#include <cuda_runtime_api.h>

#include <vector>

#include "escrow/internal/graph_query.hpp"

namespace escrow::inline v0_2 {

// As the kinds of nodes are named.
[[nodiscard]] char const* kind_name(cudaGraphNodeType type) noexcept;

// All that follow throw cuda_error, std::bad_alloc.

struct child_graphs {
  std::vector<cudaGraph_t> graphs;  // in the order of nodes, which a copy preserves
  std::vector<cudaGraphNode_t> nodes;
  std::vector<cudaGraphNode_t> conditionals;
  std::vector<cudaGraphNode_t> kernels;
};
[[nodiscard]] child_graphs children_of(cudaGraph_t graph);

// The graph and its child graphs, at any depth, in an order that a copy preserves.
[[nodiscard]] std::vector<cudaGraph_t> graphs_of(cudaGraph_t root);
// All their nodes, in such an order, too.
[[nodiscard]] std::vector<cudaGraphNode_t> tree_nodes_of(cudaGraph_t root);

// A graph's nodes, in an order in which each comes after those that it depends on; without those
// that are in a cycle, or behind one.
[[nodiscard]] std::vector<cudaGraphNode_t> sorted_by_edges(
    std::vector<cudaGraphNode_t> const& nodes, graph_edges const& edges);

// After this, the graph that the registry knows with this handle, if any, is this one. Throws
// usage_error, naming `call`, if the graph's id is needed and cannot be learned.
void identify(char const* call, cudaGraph_t graph);

}  // namespace escrow::inline v0_2
