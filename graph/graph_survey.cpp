// SPDX-License-Identifier: Apache-2.0
// A graph is identified only if the registry knows its handle. References move from the graph to a
// hoist_scope and back, and are always held by one of them.
#include "graph_survey.hpp"

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "escrow/core/error.hpp"
#include "escrow/internal/deleter_core.hpp"
#include "escrow/internal/graph_query.hpp"
#include "escrow/internal/graph_registry.hpp"
#include "escrow/internal/retry_cleanup.hpp"
#include "graph_tree.hpp"
#include "kept_leases.hpp"

namespace escrow::inline v0_2 {

namespace {

using group_set = graph_registry::group_set;

// A group that several parts use; null: there is none.
group_order const* shared_group(std::vector<group_set> const& parts) {
  for (group_set const& part : parts) {
    for (auto const& group : part) {
      auto const uses_it = [&group](group_set const& each) { return each.contains(group); };
      if (std::ranges::count_if(parts, uses_it) > 1) return group->group;
    }
  }
  return nullptr;
}

void note_concurrent(graph_survey& found, char const* what, group_order const& group) {
  found.problem = std::string(what) + " of the graph share slots of the sharing group \"" +
                  group.options.label + "\", and may run concurrently";
  found.advice = std::string(what).starts_with("a conditional")
                     ? "let one body alone use the group, or claim from a pool without a group"
                     : "make it a single line of nodes, as graph::add_child on a new graph does, "
                       "or claim from a "
                       "pool without a group";
}

// The nodes in their order, if each ends before the next one ends, and before a child graph starts,
// and none has another next one; else nothing.
std::optional<std::vector<cudaGraphNode_t>> line_of(cudaGraph_t graph) {
  auto const [from, to, data] = edges_of(graph);
  std::vector<cudaGraphNode_t> line = nodes_of(graph);
  if (data.size() + 1 != line.size()) return std::nullopt;
  std::unordered_map<cudaGraphNode_t, cudaGraphNode_t> next;
  std::unordered_set<cudaGraphNode_t> later;
  for (std::size_t i = 0; i < data.size(); ++i) {
    if (!next.emplace(from[i], to[i]).second || !later.insert(to[i]).second) return std::nullopt;
    if (!ends_after(to[i], data[i])) return std::nullopt;
  }
  auto const is_first = [&later](cudaGraphNode_t node) { return !later.contains(node); };
  line.front() = *std::ranges::find_if(line, is_first);
  for (std::size_t i = 1; i < line.size(); ++i) line[i] = next.at(line[i - 1]);
  return line;
}

// Returns the groups of the graph and its child graphs.
// `node`: the child node that it is of; null: of none. `depth`: of such nodes around it.
group_set survey_tree(char const* call, cudaGraph_t graph, graph_survey& found,
                      cudaGraphNode_t node = nullptr, std::size_t depth = 0) {
  identify(call, graph);
  graph_registry& registry = graph_registry::global();
  registry.forget_released(0, graph);
  auto const its = registry.known(graph);
  if (its.is_used) found.known.insert(graph);
  if (its.released != nullptr) found.released = its.released;
  child_graphs const children = children_of(graph);
  found.conditionals += children.conditionals.size();
  if (found.is_for_exec) {
    add_clusters(found.clusters, children.kernels);
    found.claims.add(node, depth, registry.exclusives_of(graph));
  }
  std::vector<group_set> parts{registry.groups_of(graph)};
  for (std::size_t i = 0; i < children.graphs.size(); ++i) {
    parts.push_back(survey_tree(call, children.graphs[i], found, children.nodes[i], depth + 1));
  }
  if (group_order const* const shared = shared_group(parts)) {
    auto const line = line_of(graph);
    if (!line) note_concurrent(found, "parts", *shared);
    auto const lost = line ? overwritten_in(graph, children, *line) : nullptr;
    if (lost != nullptr) {
      found.problem = overwrites(*lost);
      found.advice = keep_the_lease;
    }
  }
  group_set all;
  for (group_set& each : parts) all.merge(each);
  return all;
}

}  // namespace

graph_survey survey_of(char const* call, cudaGraph_t root, graph_core* core,
                       std::span<cudaGraph_t const> bodies, bool is_for_exec) {
  if (root == nullptr) {
    throw usage_error(call, "the graph is null: it was moved from or detached",
                      "pass a graph that exists");
  }
  // In the order in which they were made, or given: what two graphs have there is compared.
  std::vector<cudaGraph_t> all_bodies;
  auto const add_body = [&all_bodies](cudaGraph_t body) {
    if (std::ranges::find(all_bodies, body) == all_bodies.end()) all_bodies.push_back(body);
  };
  if (core != nullptr) {
    core->seal();
    for (auto const& each : core->bodies) add_body(each.graph);
  }
  std::ranges::for_each(bodies, add_body);
  graph_survey found;
  found.is_for_exec = is_for_exec;
  std::vector<group_set> parts{survey_tree(call, root, found)};
  for (cudaGraph_t const body : all_bodies) parts.push_back(survey_tree(call, body, found));
  if (!found.clusters.all.empty()) {
    add_order(found.clusters, root);
    for (cudaGraph_t const body : all_bodies) add_order(found.clusters, body);
  }
  for (group_set const& part : parts) found.groups.insert(part.begin(), part.end());
  // A body may run whenever others do.
  group_order const* const shared = shared_group(parts);
  if (shared != nullptr) note_concurrent(found, "a conditional node's body and a part", *shared);
  if (found.problem.empty() && found.known.size() > 1) {
    auto const own = core == nullptr ? std::span<graph_core::body const>() : core->bodies;
    std::vector<cudaGraph_t> all(bodies.begin(), bodies.end());  // other bodies are found
    all.push_back(root);
    auto const has_race = [own](cudaGraph_t each) { return has_unordered_claims(each, own); };
    if (std::ranges::any_of(all, has_race)) {
      found.problem = claims_may_race;
      found.advice = order_the_claims;
    }
  }
  found.lacks_bodies =
      all_bodies.size() < found.conditionals && !graph_registry::global().is_empty();
  return found;
}

graph_survey survey_for_copy(char const* call, graph_core& original) {
  graph_survey found = survey_of(call, original.native(), &original, {});
  for (auto const& group : found.groups) found.pins.add(call, group);
  for (cudaGraph_t const each : found.known) {
    static_cast<void>(graph_registry::global().seal(each));
  }
  return found;
}

void note_copies(graph_survey const& originals, cudaGraph_t original, cudaGraph_t copy,
                 cudaGraph_t root) {
  if (originals.known.empty()) return;
  graph_registry& registry = graph_registry::global();
  std::vector<cudaGraph_t> const from = graphs_of(original);
  std::vector<cudaGraph_t> const to = graphs_of(copy);
  for (std::size_t i = 0; i < std::min(from.size(), to.size()); ++i) {
    if (!originals.known.contains(from[i])) continue;
    bool const is_owned = registry.known(to[i]).is_owned;
    std::uint64_t const id = is_owned ? 0 : graph_id_of(to[i]).value_or(0);
    if (!is_owned && id == 0) continue;
    registry.add_copy(from[i], id, to[i], copied_leases(from[i], to[i]), root);
  }
}

hoist_scope::hoist_scope(char const* call, graph_survey const& survey) : hoist_scope() {
  if (!survey.problem.empty()) throw usage_error(call, survey.problem, survey.advice);
  for (auto const& group : survey.groups) pins_.add(call, group);
  std::set<reference_set*> all;
  for (cudaGraph_t const graph : survey.known) {
    for (reference_set* const each : graph_registry::global().seal(graph)) {
      placed_.push_back({graph, each});
      all.insert(each);
    }
  }
  for (reference_set* const each : all) sets_.emplace_back(*each);
  for (; off_ < placed_.size(); ++off_) {
    auto const [graph, set] = placed_[off_];
    cudaUserObject_t const object = set->object();
    if (object == nullptr) continue;  // it has a keeper
    check(cudaUserObjectRetain(object, 1), "cudaUserObjectRetain");
    cudaError_t const status = cudaGraphReleaseUserObject(graph, object, 1);
    if (status != cudaSuccess) release_object(object, set->accounts());
    check(status, "cudaGraphReleaseUserObject");
  }
}

hoist_scope::~hoist_scope() {
  for (; off_ != 0; --off_) {
    taken const& each = placed_[off_ - 1];
    if (each.set->object() == nullptr) continue;
    cudaError_t const status = retry_cleanup([&each] {
      return cudaGraphRetainUserObject(each.graph, each.set->object(), 1, cudaGraphUserObjectMove);
    });
    if (status == cudaSuccess) continue;
    // Leak the reference, since nothing reports when the graph is destroyed. Nothing may be removed
    // from the graph any more: CUDA would count below zero (measured).
    graph_registry::global().remove(*each.set, each.graph);
    deleter_core& core = each.set->core();
    core.count_leaked();
    core.report(status, "cudaGraphRetainUserObject");
  }
}

void hoist_scope::keep_off(graph_core* core, hoist_ref const& by) noexcept {
  for (; off_ != 0; --off_) {
    taken const& each = placed_[off_ - 1];
    graph_registry::global().remove_hoisted(*each.set, each.graph, by);
    if (each.set->object() != nullptr) release_object(each.set->object(), each.set->accounts());
  }
  if (core != nullptr) core->forget_payloads();
}

}  // namespace escrow::inline v0_2
