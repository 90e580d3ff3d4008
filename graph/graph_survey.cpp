// A graph is identified only if the registry knows its handle. References move from the graph to a
// hoist_scope and back, and are always held by one of them.
#include "graph_survey.hpp"

#include <algorithm>
#include <optional>
#include <set>

#include "escrow/core/error.hpp"
#include "escrow/detail/deleter_core.hpp"
#include "escrow/internal/graph_query.hpp"
#include "escrow/internal/reference_set.hpp"
#include "escrow/internal/retry_cleanup.hpp"

namespace escrow::inline v0_1 {

namespace {

void add_tree(cudaGraph_t graph, graph_tree& tree) {
  std::size_t const own = tree.graphs.size();
  tree.graphs.push_back(graph);
  for (cudaGraphNode_t const node : nodes_of(graph)) {
    cudaGraphNodeType type{};
    check(cudaGraphNodeGetType(node, &type), "cudaGraphNodeGetType");
    if (type == cudaGraphNodeTypeConditional) ++tree.conditionals;
    if (type != cudaGraphNodeTypeGraph) continue;
    cudaGraph_t child = nullptr;
    check(cudaGraphChildGraphNodeGetGraph(node, &child), "cudaGraphChildGraphNodeGetGraph");
    std::size_t const begin = tree.graphs.size();
    add_tree(child, tree);
    tree.children.push_back({own, node, begin, tree.graphs.size()});
  }
}

std::vector<cudaGraph_t> graphs_of(cudaGraph_t root) {
  graph_tree tree;
  add_tree(root, tree);
  return tree.graphs;
}

// The registry's id of the graph; 0 if not known.
std::uint64_t identify(char const* call, cudaGraph_t graph) {
  std::uint64_t const noted = graph_registry::global().find(graph);
  if (noted == 0 || graph_registry::is_key(noted)) return noted;
  std::optional<std::uint64_t> const id = graph_id_of(graph);
  if (!id) throw usage_error(call, "the graph is being captured into", "end the capture first");
  // The graph that had the handle before was destroyed.
  if (*id != noted) graph_registry::global().forget_graph(graph, noted);
  return *id;
}

}  // namespace

survey_root::survey_root(graph_core* ours) : core(ours) {
  if (core == nullptr) return;
  core->seal();
  handle = core->native();
  key = core->key();
}

graph_survey survey_of(char const* call, survey_root const& root,
                       std::span<cudaGraph_t const> bodies) {
  if (root.handle == nullptr) {
    throw usage_error(call, "the graph is null: it was moved from or detached",
                      "pass a graph that exists");
  }
  graph_registry& registry = graph_registry::global();
  std::set<cudaGraph_t> all_bodies(bodies.begin(), bodies.end());
  if (root.core != nullptr) all_bodies.insert(root.core->bodies.begin(), root.core->bodies.end());
  graph_survey found;
  graph_tree& tree = found.tree;
  add_tree(root.handle, tree);
  found.bodies_begin = tree.graphs.size();
  for (cudaGraph_t const body : all_bodies) add_tree(body, tree);
  found.lacks_bodies = all_bodies.size() < tree.conditionals && !registry.is_empty();
  for (cudaGraph_t const each : tree.graphs) {
    bool const is_root = each == root.handle && root.key != 0;
    std::uint64_t const id = is_root ? root.key : identify(call, each);
    if (id != 0) registry.forget_released(id, each);
    if (id != 0 && registry.knows(id)) found.known.emplace(each, id);
  }
  return found;
}

graph_survey survey_for_copy(char const* call, graph_core& original) {
  graph_survey survey = survey_of(call, &original, {});
  for (auto const& [graph, id] : survey.known) static_cast<void>(graph_registry::global().seal(id));
  return survey;
}

void note_copies(graph_survey const& originals, cudaGraph_t original, cudaGraph_t copy,
                 std::uint64_t id) {
  if (originals.known.empty()) return;
  std::vector<cudaGraph_t> const from = graphs_of(original);
  std::vector<cudaGraph_t> const to = graphs_of(copy);
  for (std::size_t i = 0; i < std::min(from.size(), to.size()); ++i) {
    auto const known = originals.known.find(from[i]);
    if (known == originals.known.end()) continue;
    bool const is_given = i == 0 && id != 0;
    std::uint64_t const copy_id = is_given ? id : graph_id_of(to[i]).value_or(0);
    if (copy_id != 0) graph_registry::global().add_copy(known->second, copy_id, to[i]);
  }
}

hoist_scope::hoist_scope(char const* call, graph_survey const& survey) : hoist_scope() {
  require_serial_groups(call, survey.tree, survey.bodies_begin, survey.known);
  std::vector<reference_set*> all;
  for (auto const& [graph, id] : survey.known) {
    for (reference_set* const each : graph_registry::global().seal(id)) {
      placed_.push_back({graph, id, each});
      all.push_back(each);
    }
  }
  std::ranges::sort(all);
  all.erase(std::unique(all.begin(), all.end()), all.end());
  for (reference_set* const each : all) sets_.emplace_back(*each);
  for (; off_ < placed_.size(); ++off_) take_off(placed_[off_]);
}

void hoist_scope::take_off(taken const& each) {
  cudaUserObject_t const object = each.set->object();
  check(cudaUserObjectRetain(object, 1), "cudaUserObjectRetain");
  cudaError_t const status = cudaGraphReleaseUserObject(each.graph, object, 1);
  if (status == cudaSuccess) return;
  release_object(object, each.set->core());
  check(status, "cudaGraphReleaseUserObject");
}

hoist_scope::~hoist_scope() {
  for (; off_ != 0; --off_) {
    taken const& each = placed_[off_ - 1];
    cudaError_t const status = retry_cleanup([&each] {
      return cudaGraphRetainUserObject(each.graph, each.set->object(), 1, cudaGraphUserObjectMove);
    });
    if (status == cudaSuccess) continue;
    // Leak the reference, since nothing reports when the graph is destroyed. Nothing may be removed
    // from the graph any more: CUDA would count below zero (measured).
    graph_registry::global().remove(*each.set, each.graph_id);
    deleter_core& core = each.set->core();
    core.count_leaked();
    core.report(status, "cudaGraphRetainUserObject");
  }
}

void hoist_scope::keep_off(survey_root const& root) noexcept {
  for (; off_ != 0; --off_) {
    taken const& each = placed_[off_ - 1];
    each.set->end_reuse(graph_registry::global().remove_hoisted(*each.set, each.graph_id));
    release_object(each.set->object(), each.set->core());
  }
  if (root.core != nullptr) root.core->forget_payloads();
}

}  // namespace escrow::inline v0_1
