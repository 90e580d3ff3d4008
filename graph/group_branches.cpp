// Which nodes are ordered with a child graph's node.
#include "group_branches.hpp"

#include <algorithm>
#include <string>
#include <unordered_map>

#include "escrow/core/error.hpp"
#include "escrow/internal/graph_query.hpp"
#include "escrow/internal/reference_set.hpp"

namespace escrow::inline v0_1 {

namespace {

using indices = std::vector<std::size_t>;

// For each node, along the edges: the most marked nodes on a path that ends with it.
indices marked_on_paths(indices const& from, indices const& to,
                        std::vector<bool> const& is_marked) {
  std::vector<indices> later(is_marked.size());
  indices waits_for(is_marked.size());
  for (std::size_t i = 0; i < from.size(); ++i) {
    later[from[i]].push_back(to[i]);
    ++waits_for[to[i]];
  }
  indices next;
  for (std::size_t i = 0; i < is_marked.size(); ++i) {
    if (waits_for[i] == 0) next.push_back(i);
  }
  indices most(is_marked.size());
  while (!next.empty()) {
    std::size_t const node = next.back();
    next.pop_back();
    if (is_marked[node]) ++most[node];
    for (std::size_t const each : later[node]) {
      most[each] = std::max(most[each], most[node]);
      if (--waits_for[each] == 0) next.push_back(each);
    }
  }
  return most;
}

// Whether no two of `children` may run concurrently; with all nodes, none and any other node.
bool are_serial(cudaGraph_t graph, std::vector<cudaGraphNode_t> const& children, bool with_all) {
  std::unordered_map<cudaGraphNode_t, std::size_t> index;
  for (cudaGraphNode_t const each : nodes_of(graph)) index.emplace(each, index.size());
  graph_edges const edges = edges_of(graph);
  indices from;
  indices to;
  indices ended_from;  // edges whose successor begins after the end of what comes before
  indices ended_to;
  for (std::size_t i = 0; i < edges.from.size(); ++i) {
    from.push_back(index.at(edges.from[i]));
    to.push_back(index.at(edges.to[i]));
    if (!ends_after(edges.to[i], edges.data[i])) continue;
    ended_from.push_back(from.back());
    ended_to.push_back(to.back());
  }
  std::vector<bool> is_child(index.size());
  for (cudaGraphNode_t const each : children) is_child[index.at(each)] = true;
  // A child ends before its successors begin.
  indices const before = marked_on_paths(from, to, is_child);
  indices const after = marked_on_paths(to, from, is_child);
  indices const after_end = marked_on_paths(ended_to, ended_from, is_child);
  for (std::size_t i = 0; i < index.size(); ++i) {
    // On one path with all children, of which a child itself counts twice.
    if (is_child[i] && before[i] + after[i] != children.size() + 1) return false;
    if (!is_child[i] && with_all && before[i] + after_end[i] != children.size()) return false;
  }
  return true;
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
