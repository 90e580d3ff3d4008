// SPDX-License-Identifier: Apache-2.0
// Looks for what CUDA may mean, after it has refused a graph.
#include "why_invalid.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <unordered_map>
#include <vector>

#include "escrow/core/error.hpp"
#include "escrow/internal/driver.hpp"
#include "escrow/internal/graph_query.hpp"
#include "graph_tree.hpp"

namespace escrow::inline v0_2 {

namespace {

// Takes off all nodes that wait for nothing, again and again: what is left is in a cycle, or behind
// one.
bool has_cycle(cudaGraph_t graph) {
  graph_edges const edges = edges_of(graph);
  std::unordered_map<cudaGraphNode_t, std::size_t> waits_for;
  std::unordered_multimap<cudaGraphNode_t, cudaGraphNode_t> next;
  std::vector<cudaGraphNode_t> const nodes = nodes_of(graph);
  for (cudaGraphNode_t const node : nodes) waits_for.emplace(node, 0);
  for (std::size_t i = 0; i < edges.to.size(); ++i) {
    ++waits_for[edges.to[i]];
    next.emplace(edges.from[i], edges.to[i]);
  }
  std::vector<cudaGraphNode_t> ready;
  auto const is_ready = [&](cudaGraphNode_t node) { return waits_for[node] == 0; };
  std::ranges::copy_if(nodes, std::back_inserter(ready), is_ready);
  for (std::size_t i = 0; i < ready.size(); ++i) {
    auto const [begin, end] = next.equal_range(ready[i]);
    for (auto each = begin; each != end; ++each) {
      if (--waits_for[each->second] == 0) ready.push_back(each->second);
    }
  }
  return ready.size() != nodes.size();
}

// Null: the body has no such node.
char const* kind_that_no_body_has(cudaGraph_t body) {
  constexpr std::array allowed{cudaGraphNodeTypeKernel, cudaGraphNodeTypeMemcpy,
                               cudaGraphNodeTypeMemset, cudaGraphNodeTypeGraph,
                               cudaGraphNodeTypeEmpty,  cudaGraphNodeTypeConditional};
  for (cudaGraphNode_t const node : nodes_of(body)) {
    cudaGraphNodeType type{};
    check(query_type(node, type), "cudaGraphNodeGetType");
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
  return "CUDA refuses a graph with a condition that no node has, and bodies that copy memory of "
         "the host";
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
