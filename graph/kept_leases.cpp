// SPDX-License-Identifier: Apache-2.0
// Compares what parts cover with the leases of the graph around them.
#include "kept_leases.hpp"

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "escrow/core/error.hpp"
#include "escrow/internal/graph_query.hpp"
#include "escrow/internal/graph_registry.hpp"

namespace escrow::inline v0_2 {

namespace {

void add_leases(lease_spans& to, cudaGraph_t graph) {
  to.splice(to.end(), graph_registry::global().leases_of(graph));
}

[[nodiscard]] bool may_overlap(lease_span const& one, lease_span const& other) {
  group_lease const& its = *one.lease;
  return &its.origin->group == &other.lease->origin->group &&
         its.place.overlaps(other.lease->place);
}

// What a part covers: that of its graph and of the graph's child graphs.
lease_spans covered_by(cudaGraph_t part) {
  lease_spans covered;
  for (cudaGraph_t const each : graphs_of(part)) add_leases(covered, each);
  return covered;
}

// The leases of a graph: its own, and those in its child graphs that live, each from its child's
// node on.
lease_spans leases_in(cudaGraph_t graph, child_graphs const& children) {
  lease_spans all;
  add_leases(all, graph);
  for (std::size_t i = 0; i < children.graphs.size(); ++i) {
    lease_spans covered = covered_by(children.graphs[i]);
    std::erase_if(covered, [](auto const& each) { return !is_alive(each.state()); });
    for (lease_span& each : covered) each.claimed_after.assign(1, children.nodes[i]);
    all.splice(all.end(), covered);
  }
  return all;
}

// A lease of the graph that is claimed before a part and not released before it, where the part
// covers the same slot for another lease; null: there is none. `is_before` answers for a node of
// the graph; with nothing if there is no such node any more.
template <class IsBefore>
std::shared_ptr<group_lease> overwritten_by(lease_spans const& part, lease_spans const& of_graph,
                                            IsBefore is_before) {
  // What nobody can know counts as a conflict.
  auto const may_be_before = [&](cudaGraphNode_t node) { return is_before(node).value_or(true); };
  auto const is_known_before = [&](cudaGraphNode_t node) {
    return is_before(node).value_or(false);
  };
  auto const is_open = [&](lease_span const& each) {
    lease_state const state = each.state();
    if (state == lease_state::over) return false;
    if (!std::ranges::all_of(each.claimed_after, may_be_before)) return false;
    return is_alive(state) || !std::ranges::all_of(each.release(), is_known_before);
  };
  for (lease_span const& each : of_graph) {
    auto const is_same = [&](lease_span const& use) { return use.lease == each.lease; };
    auto const is_over_it = [&](lease_span const& use) { return may_overlap(use, each); };
    if (std::ranges::none_of(part, is_over_it) || std::ranges::any_of(part, is_same)) continue;
    if (is_open(each)) return each.lease;
  }
  return nullptr;
}

// These nodes of the graph, and all that they come after.
std::unordered_set<cudaGraphNode_t> with_earlier(cudaGraph_t graph,
                                                 std::span<cudaGraphNode_t const> last) {
  std::unordered_multimap<cudaGraphNode_t, cudaGraphNode_t> earlier;
  graph_edges const edges = edges_of(graph);
  for (std::size_t i = 0; i < edges.to.size(); ++i) earlier.emplace(edges.to[i], edges.from[i]);
  std::unordered_set<cudaGraphNode_t> all(last.begin(), last.end());
  std::vector<cudaGraphNode_t> open(last.begin(), last.end());
  while (!open.empty()) {
    auto const [begin, end] = earlier.equal_range(open.back());
    open.pop_back();
    for (auto at = begin; at != end; ++at) {
      if (all.insert(at->second).second) open.push_back(at->second);
    }
  }
  return all;
}

}  // namespace

std::string overwrites(group_lease const& lease) {
  return "a child graph overwrites what " + name_of(lease) +
         " covers: it uses the same slot of their sharing group, after the claim and before the "
         "release";
}

std::shared_ptr<group_lease> overwritten_in(cudaGraph_t graph, child_graphs const& children,
                                            std::vector<cudaGraphNode_t> const& line) {
  lease_spans const of_graph = leases_in(graph, children);
  if (of_graph.empty()) return nullptr;
  std::unordered_map<cudaGraphNode_t, std::size_t> place;
  for (std::size_t i = 0; i < line.size(); ++i) place.emplace(line[i], i);
  for (std::size_t i = 0; i < children.graphs.size(); ++i) {
    auto const is_before = [&, at = place.at(children.nodes[i])](cudaGraphNode_t node) {
      auto const its = place.find(node);
      return its == place.end() ? std::nullopt : std::optional(its->second < at);
    };
    if (auto lost = overwritten_by(covered_by(children.graphs[i]), of_graph, is_before))
      return lost;
  }
  return nullptr;
}

void refuse_overwriting(char const* call, std::set<cudaGraph_t> const& part, cudaGraph_t in,
                        std::span<cudaGraphNode_t const> after) {
  lease_spans covered;
  for (cudaGraph_t const each : part) add_leases(covered, each);
  // Most often none lives, and nothing can be overwritten. The caller's own are seen.
  auto const may_live = [](lease_span const& each) {
    return each.lease->origin->counts->is_any_living();
  };
  if (std::ranges::none_of(covered, may_live)) return;
  identify(call, in);
  child_graphs const children = children_of(in);
  for (cudaGraph_t const child : children.graphs) {
    for (cudaGraph_t const each : graphs_of(child)) identify(call, each);
  }
  std::vector<cudaGraphNode_t> const nodes = nodes_of(in);
  std::unordered_set<cudaGraphNode_t> const before = with_earlier(in, after);
  auto const is_before = [&](cudaGraphNode_t node) {
    bool const is_there = std::ranges::find(nodes, node) != nodes.end();
    return is_there ? std::optional(before.contains(node)) : std::nullopt;
  };
  lease_spans its = leases_in(in, children);
  // Of others, the exec's own survey knows the final order.
  std::erase_if(its, [](auto const& each) { return !is_alive(each.state()); });
  auto const lost = overwritten_by(covered, its, is_before);
  if (lost != nullptr) throw usage_error(call, overwrites(*lost), keep_the_lease);
}

lease_spans copied_leases(cudaGraph_t original, cudaGraph_t copy) {
  lease_spans leases = graph_registry::global().leases_of(original);
  if (leases.empty()) return leases;
  std::vector<cudaGraphNode_t> const from = nodes_of(original);
  std::vector<cudaGraphNode_t> const to = nodes_of(copy);
  std::unordered_map<cudaGraphNode_t, cudaGraphNode_t> copied;
  for (std::size_t i = 0; i < std::min(from.size(), to.size()); ++i) copied.emplace(from[i], to[i]);
  auto const copy_of = [&copied](cudaGraphNode_t node) {  // null: it was destroyed
    auto const found = copied.find(node);
    return found == copied.end() ? nullptr : found->second;
  };
  for (lease_span& each : leases) {
    lease_state const state = each.state();
    if (state == lease_state::released) each.released_after = each.release();
    each.is_copy = true;
    each.was_released = state == lease_state::released;
    std::ranges::transform(each.claimed_after, each.claimed_after.begin(), copy_of);
    std::ranges::transform(each.released_after, each.released_after.begin(), copy_of);
  }
  return leases;
}

}  // namespace escrow::inline v0_2
