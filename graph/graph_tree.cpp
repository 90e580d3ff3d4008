// SPDX-License-Identifier: Apache-2.0
// Walks of graphs; identification by id.
#include "graph_tree.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <optional>
#include <unordered_map>
#include <utility>

#include "escrow/core/error.hpp"
#include "escrow/internal/driver.hpp"
#include "escrow/internal/graph_registry.hpp"

namespace escrow::inline v0_2 {

char const* kind_name(cudaGraphNodeType type) noexcept {
  static constexpr std::array<std::pair<cudaGraphNodeType, char const*>, 11> names{
      {{cudaGraphNodeTypeKernel, "kernel"},
       {cudaGraphNodeTypeMemcpy, "memcpy"},
       {cudaGraphNodeTypeMemset, "memset"},
       {cudaGraphNodeTypeHost, "host"},
       {cudaGraphNodeTypeGraph, "child"},
       {cudaGraphNodeTypeEmpty, "empty"},
       {cudaGraphNodeTypeWaitEvent, "wait"},
       {cudaGraphNodeTypeEventRecord, "record"},
       {cudaGraphNodeTypeMemAlloc, "alloc"},
       {cudaGraphNodeTypeMemFree, "free"},
       {cudaGraphNodeTypeConditional, "conditional"}}};
  auto const is_it = [type](auto const& each) { return each.first == type; };
  auto const* const found = std::ranges::find_if(names, is_it);
  return found == names.end() ? "other" : found->second;
}

child_graphs children_of(cudaGraph_t graph) {
  child_graphs found;
  for (cudaGraphNode_t const node : nodes_of(graph)) {
    cudaGraphNodeType const type = type_of(node);
    if (type == cudaGraphNodeTypeConditional) found.conditionals.push_back(node);
    if (type == cudaGraphNodeTypeKernel) found.kernels.push_back(node);
    if (type != cudaGraphNodeTypeGraph) continue;
    check(cudaGraphChildGraphNodeGetGraph(node, &found.graphs.emplace_back()),
          "cudaGraphChildGraphNodeGetGraph");
    found.nodes.push_back(node);
  }
  return found;
}

std::vector<cudaGraph_t> graphs_of(cudaGraph_t root) {
  std::vector<cudaGraph_t> tree{root};
  for (std::size_t i = 0; i < tree.size(); ++i) {
    std::ranges::copy(children_of(tree[i]).graphs, std::back_inserter(tree));
  }
  return tree;
}

std::vector<cudaGraphNode_t> tree_nodes_of(cudaGraph_t root) {
  std::vector<cudaGraphNode_t> all;
  for (cudaGraph_t const each : graphs_of(root)) {
    std::ranges::copy(nodes_of(each), std::back_inserter(all));
  }
  return all;
}

std::vector<cudaGraphNode_t> sorted_by_edges(std::vector<cudaGraphNode_t> const& nodes,
                                             graph_edges const& edges) {
  std::unordered_map<cudaGraphNode_t, std::vector<cudaGraphNode_t>> later;
  std::unordered_map<cudaGraphNode_t, std::size_t> open;  // edges from nodes that are not in order
  for (std::size_t i = 0; i < edges.to.size(); ++i) {
    later[edges.from[i]].push_back(edges.to[i]);
    ++open[edges.to[i]];
  }
  std::vector<cudaGraphNode_t> in_order;
  for (cudaGraphNode_t const each : nodes) {
    if (!open.contains(each)) in_order.push_back(each);
  }
  for (std::size_t i = 0; i < in_order.size(); ++i) {
    for (cudaGraphNode_t const each : later[in_order[i]]) {
      if (--open[each] == 0) in_order.push_back(each);
    }
  }
  return in_order;
}

void identify(char const* call, cudaGraph_t graph) {
  graph_registry& registry = graph_registry::global();
  auto const known = registry.known(graph);
  if (known.id == 0 || known.is_owned) return;
  std::optional<std::uint64_t> const id = graph_id_of(graph);
  if (!id) throw usage_error(call, "the graph is being captured into", "end the capture first");
  // The graph that had the handle before was destroyed.
  if (*id != known.id) registry.forget(graph);
}

}  // namespace escrow::inline v0_2
