// Which nodes are ordered with a child graph's node.
#include "group_branches.hpp"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "escrow/core/error.hpp"
#include "escrow/detail/graph_query.hpp"
#include "escrow/detail/reference_set.hpp"

namespace escrow::inline v0_1 {

namespace {

using links = std::unordered_map<cudaGraphNode_t, std::vector<cudaGraphNode_t>>;
using node_set = std::unordered_set<cudaGraphNode_t>;

void add_reachable(cudaGraphNode_t from, links const& of, node_set& found) {
  std::vector<cudaGraphNode_t> next{from};
  node_set seen{from};
  while (!next.empty()) {
    auto const at = of.find(next.back());
    next.pop_back();
    if (at == of.end()) continue;
    for (cudaGraphNode_t const each : at->second) {
      if (seen.insert(each).second) next.push_back(each);
    }
  }
  found.merge(seen);
}

// For each node of `asked`, which are no kernels: itself, the nodes that end before it begins, and
// those that begin after its end.
std::vector<node_set> ordered_with(cudaGraph_t graph, std::vector<cudaGraphNode_t> const& asked) {
  graph_edges const edges = edges_of(graph);
  links later;
  links earlier;
  for (std::size_t i = 0; i < edges.from.size(); ++i) {
    later[edges.from[i]].push_back(edges.to[i]);
    if (ends_after(edges.to[i], edges.data[i])) earlier[edges.to[i]].push_back(edges.from[i]);
  }
  std::vector<node_set> result(asked.size());
  for (std::size_t i = 0; i < asked.size(); ++i) {
    add_reachable(asked[i], later, result[i]);
    add_reachable(asked[i], earlier, result[i]);
  }
  return result;
}

[[noreturn]] void refuse(char const* call, group_order const& group, char const* what) {
  throw usage_error(call,
                    std::string(what) + " of the graph share slots of the sharing group \"" +
                        group.options.label + "\", and may run concurrently",
                    "add the child after the others (graph::add_child), or claim from a pool "
                    "without a group");
}

void require_serial(char const* call, graph_tree const& tree, std::size_t bodies_begin,
                    group_order const& group, std::vector<bool> const& is_in_group) {
  auto const any_in = [&](std::size_t begin, std::size_t end) {
    auto const at = [&](std::size_t i) {
      return is_in_group.begin() + static_cast<std::ptrdiff_t>(i);
    };
    return std::find(at(begin), at(end), true) != at(end);
  };
  if (any_in(bodies_begin, tree.graphs.size()) && std::ranges::count(is_in_group, true) > 1) {
    refuse(call, group, "a conditional node's body and another part");
  }
  for (std::size_t i = 0; i < tree.graphs.size(); ++i) {
    std::vector<cudaGraphNode_t> children;
    for (auto const& each : tree.children) {
      if (each.in == i && any_in(each.begin, each.end)) children.push_back(each.node);
    }
    if (children.size() + (is_in_group[i] ? 1 : 0) < 2) continue;
    std::vector<node_set> const ordered = ordered_with(tree.graphs[i], children);
    std::size_t const nodes = is_in_group[i] ? nodes_of(tree.graphs[i]).size() : 0;
    for (node_set const& its : ordered) {
      bool const is_with_all = !is_in_group[i] || its.size() == nodes;
      bool const is_with_children =
          std::ranges::all_of(children, [&](auto const& other) { return its.contains(other); });
      if (!is_with_all || !is_with_children) refuse(call, group, "child graphs on two branches");
    }
  }
}

}  // namespace

void require_serial_groups(char const* call, graph_tree const& tree, std::size_t bodies_begin,
                           std::map<cudaGraph_t, std::uint64_t> const& known) {
  if (known.size() < 2) return;
  std::map<std::shared_ptr<launch_order>, std::vector<bool>> members;
  for (std::size_t i = 0; i < tree.graphs.size(); ++i) {
    auto const id = known.find(tree.graphs[i]);
    if (id == known.end()) continue;
    for (auto const& group : graph_registry::global().groups_of(id->second)) {
      members.try_emplace(group, tree.graphs.size()).first->second[i] = true;
    }
  }
  for (auto const& [order, is_in_group] : members) {
    require_serial(call, tree, bodies_begin, *order->group, is_in_group);
  }
}

}  // namespace escrow::inline v0_1
