// SPDX-License-Identifier: Apache-2.0
// Looks for what CUDA may mean, after it has refused a graph.
#include "why_invalid.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <vector>

#include "escrow/core/error.hpp"
#include "escrow/internal/driver.hpp"
#include "escrow/internal/graph_query.hpp"
#include "graph_tree.hpp"

namespace escrow::inline v0_2 {

namespace {

bool has_cycle(cudaGraph_t graph) {
  std::vector<cudaGraphNode_t> const nodes = nodes_of(graph);
  return sorted_by_edges(nodes, edges_of(graph)).size() != nodes.size();
}

// Null: the body has no such node.
char const* kind_that_no_body_has(cudaGraph_t body) {
  constexpr std::array allowed{cudaGraphNodeTypeKernel, cudaGraphNodeTypeMemcpy,
                               cudaGraphNodeTypeMemset, cudaGraphNodeTypeGraph,
                               cudaGraphNodeTypeEmpty,  cudaGraphNodeTypeConditional};
  for (cudaGraphNode_t const node : nodes_of(body)) {
    cudaGraphNodeType const type = type_of(node);
    if (std::ranges::find(allowed, type) == allowed.end()) return kind_name(type);
  }
  return nullptr;
}

}  // namespace

std::string why_invalid(cudaGraph_t graph, std::span<cudaGraph_t const> bodies,
                        unsigned long long flags) {
  constexpr unsigned long long known_flags =
      cudaGraphInstantiateFlagAutoFreeOnLaunch | cudaGraphInstantiateFlagUpload |
      cudaGraphInstantiateFlagDeviceLaunch | cudaGraphInstantiateFlagUseNodePriority;
  if ((flags & ~known_flags) != 0) return "`flags` has bits that CUDA does not know";
  try {
    std::vector<cudaGraph_t> all = graphs_of(graph);
    for (cudaGraph_t const body : bodies)
      std::ranges::copy(graphs_of(body), std::back_inserter(all));
    if (std::ranges::any_of(all, has_cycle))
      return "its edges form a cycle: destroy one of its nodes";
    for (cudaGraph_t const body : bodies) {
      if (char const* const kind = kind_that_no_body_has(body)) {
        return std::string("a body has a node of kind ") + kind +
               ": CUDA takes kernels, memsets, memcpys, child, conditional and empty nodes there";
      }
    }
  } catch (cuda_error const&) {  // what is left is said
  }
  if ((flags & cudaGraphInstantiateFlagDeviceLaunch) != 0) {
    return "for device launch CUDA takes graphs that have nodes, all of one device: kernels, "
           "memsets, memcpys and child graphs";
  }
  return "CUDA refuses a graph with a condition that no node has: make a conditional node with "
         "each; "
         "and bodies that copy pageable memory of the host: copy pinned memory";
}

std::string_view why_refused(cudaGraphNodeParams const& params) noexcept {
  switch (params.type) {
    case cudaGraphNodeTypeMemset:
      return "a memset_node's `width` counts elements of `element_bytes`, 1 if not set, and its "
             "rows must lie in the memory";
    case cudaGraphNodeTypeMemcpy:
      return "a memcpy_node's bytes must lie in both memories";
    default:
      return {};
  }
}

}  // namespace escrow::inline v0_2
