// Which nodes are ordered with a child graph's node.
#include "graph_survey.hpp"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "escrow/core/error.hpp"
#include "escrow/internal/graph_query.hpp"
#include "escrow/internal/reference_set.hpp"

namespace escrow::inline v0_1 {

namespace {

using edge_map = std::unordered_multimap<cudaGraphNode_t, cudaGraphNode_t>;

// The nodes that edges lead to from `node`.
std::unordered_set<cudaGraphNode_t> reached_from(cudaGraphNode_t node, edge_map const& edges) {
  std::unordered_set<cudaGraphNode_t> found;
  std::vector<cudaGraphNode_t> next{node};
  while (!next.empty()) {
    auto const [begin, end] = edges.equal_range(next.back());
    next.pop_back();
    for (auto each = begin; each != end; ++each) {
      if (found.insert(each->second).second) next.push_back(each->second);
    }
  }
  return found;
}

// Whether no two of `children` may run concurrently; with all nodes, none and any other node.
bool are_serial(cudaGraph_t graph, std::vector<cudaGraphNode_t> const& children, bool with_all) {
  graph_edges const edges = edges_of(graph);
  edge_map later;
  edge_map earlier;
  edge_map ended;  // before the successor's end
  for (std::size_t i = 0; i < edges.from.size(); ++i) {
    later.emplace(edges.from[i], edges.to[i]);
    earlier.emplace(edges.to[i], edges.from[i]);
    if (ends_after(edges.to[i], edges.data[i])) ended.emplace(edges.to[i], edges.from[i]);
  }
  std::unordered_set<cudaGraphNode_t> const marked(children.begin(), children.end());
  std::vector<cudaGraphNode_t> const all = with_all ? nodes_of(graph) : children;
  return std::ranges::all_of(children, [&](cudaGraphNode_t child) {
    // A child ends before its successors begin.
    auto const after = reached_from(child, later);
    auto const children_before = reached_from(child, earlier);
    auto const before = with_all ? reached_from(child, ended) : children_before;
    return std::ranges::all_of(all, [&](cudaGraphNode_t each) {
      return each == child || after.contains(each) ||
             (marked.contains(each) ? children_before : before).contains(each);
    });
  });
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
    if (are_serial(tree.graphs[i], children, is_in_group[i])) continue;
    refuse(call, group, "child graphs on two branches");
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
