// A graph with its child graphs, and the order of its nodes.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <optional>
#include <span>
#include <unordered_set>
#include <vector>

namespace escrow::inline v0_1 {

// All functions throw cuda_error, std::bad_alloc.

struct child_graphs {
  std::vector<cudaGraph_t> graphs;  // in the order of nodes, which a copy preserves
  std::vector<cudaGraphNode_t> nodes;
  std::size_t conditionals = 0;  // nodes
};
[[nodiscard]] child_graphs children_of(cudaGraph_t graph);

// The graph and its child graphs, at any depth, in an order that a copy preserves.
[[nodiscard]] std::vector<cudaGraph_t> graphs_of(cudaGraph_t root);

// After this, the graph that the registry knows with this handle, if any, is this one. Throws
// usage_error, naming `call`, if the graph's id is needed and cannot be learned.
void identify(char const* call, cudaGraph_t graph);

// The nodes in their order, if each ends before the next one ends, and before a child graph starts,
// and none has another next one; else nothing.
[[nodiscard]] std::optional<std::vector<cudaGraphNode_t>> line_of(cudaGraph_t graph);

// These nodes of the graph, and all that they come after.
[[nodiscard]] std::unordered_set<cudaGraphNode_t> with_earlier(
    cudaGraph_t graph, std::span<cudaGraphNode_t const> last);

}  // namespace escrow::inline v0_1
