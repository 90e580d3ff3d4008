// Graphs: checked calls, copies that the registry knows, and an end that harms no capture.
#include "escrow/graph/graph.hpp"

#include <algorithm>
#include <set>
#include <vector>

#include "escrow/core/cuda_error.hpp"
#include "escrow/core/graph_identity.hpp"
#include "escrow/core/insist.hpp"
#include "escrow/deleter/graph_registry.hpp"
#include "graph_survey.hpp"
#include "hoist_scope.hpp"

namespace escrow {

namespace {

// The nodes that nothing depends on yet.
std::vector<cudaGraphNode_t> last_nodes(cudaGraph_t graph) {
  std::vector<cudaGraphNode_t> nodes = nodes_of(graph);
  std::erase_if(nodes, [](cudaGraphNode_t node) {
    std::size_t dependents = 0;
    check(cudaGraphNodeGetDependentNodes(node, nullptr, nullptr, &dependents),
          "cudaGraphNodeGetDependentNodes");
    return dependents != 0;
  });
  return nodes;
}

// A graph that `make` makes, identified. Asking for the id is a capture, which may be lost, and the
// graph with it (graph_id_of): then another is made.
template <class Make>
graph make_identified(Make make) {
  constexpr int attempts_max = 3;
  for (int attempt = 1;; ++attempt) {
    graph made(make());
    try {
      std::uint64_t const id = graph_id_of(made.get()).value_or(0);
      return graph(made.detach(), id);
    } catch (cuda_error const& error) {
      if (error.status() != cudaErrorStreamCaptureInvalidated) throw;
      static_cast<void>(made.detach());  // it is gone
      if (attempt == attempts_max) throw;
    }
  }
}

// Notes for a copy what its original holds, all in bundles. `id` is the copy's, or 0.
void note_bundles(std::uint64_t original_id, cudaGraph_t copy, std::uint64_t id) {
  graph_registry& registry = graph_registry::global();
  if (id == 0) id = graph_id_of(copy).value_or(graph_registry::unidentified);
  for (auto const& each : registry.bundles_of(original_id)) registry.add(each, id, copy);
}

// The same for a copy with its child graphs, which come in the order in which the original has
// them. `blank` gets those that hold nothing.
void note_copies(graph_survey const& survey, cudaGraph_t original, cudaGraph_t copy,
                 std::uint64_t id, std::set<cudaGraph_t>& blank) {
  if (survey.is_unknown(original)) {
    blank.erase(copy);  // a copy that had the handle before may have been blank
  } else if (std::uint64_t const original_id = survey.known_id(original); original_id != 0) {
    note_bundles(original_id, copy, id);
  } else {
    blank.insert(copy);
  }
  inner_graphs const from = inner_graphs_of(original);
  inner_graphs const to = inner_graphs_of(copy);
  std::size_t const pairs = std::min(from.children.size(), to.children.size());
  for (std::size_t i = 0; i < pairs; ++i) {
    note_copies(survey, from.children[i], to.children[i], 0, blank);
  }
}

// What the tree of a graph that is about to be copied holds, all of it in bundles, so that the copy
// gets nothing else.
graph_survey survey_for_copy(char const* call, graph const& original) {
  graph_survey survey = survey_of(call, original, {});
  check(bundle_references(survey), "cudaGraphReleaseUserObject");
  return survey;
}

cudaGraph_t clone_of(cudaGraph_t original) {
  cudaGraph_t made = nullptr;
  check(cudaGraphClone(&made, original), "cudaGraphClone");
  return made;
}

}  // namespace

graph::graph() : graph_(nullptr), is_original_(true) {
  check(cudaGraphCreate(&graph_, 0), "cudaGraphCreate");
}

graph::~graph() {
  if (graph_ == nullptr) return;
  insist_relaxed([this] { return cudaGraphDestroy(graph_); });
  if (id_ != 0) graph_registry::global().forget_destroyed(id_);
}

graph graph::clone() const {
  graph_survey const survey = survey_for_copy("graph::clone", *this);
  bool const holds_something = survey.known_id(graph_) != 0;
  graph copy = holds_something ? make_identified([this] { return clone_of(graph_); })
                               : graph(clone_of(graph_));
  note_copies(survey, graph_, copy.get(), copy.id_, copy.blank_copies_);
  copy.is_original_ = !survey.is_unknown(graph_);
  return copy;
}

cudaGraphNode_t graph::add_child(graph const& child) {
  graph_survey const survey = survey_for_copy("graph::add_child", child);
  std::vector<cudaGraphNode_t> const last = last_nodes(graph_);
  cudaGraphNode_t node = nullptr;
  check(cudaGraphAddChildGraphNode(&node, graph_, last.data(), last.size(), child.get()),
        "cudaGraphAddChildGraphNode");
  try {
    cudaGraph_t copy = nullptr;
    check(cudaGraphChildGraphNodeGetGraph(node, &copy), "cudaGraphChildGraphNodeGetGraph");
    note_copies(survey, child.get(), copy, 0, blank_copies_);
  } catch (...) {
    insist_relaxed([node] { return cudaGraphDestroyNode(node); });
    throw;
  }
  return node;
}

footprint graph::held() const {
  std::vector<std::uint64_t> ids;
  for (auto const& each : survey_of("graph::held", *this, {}).known) ids.push_back(each.id);
  return graph_registry::global().describe(ids);
}

}  // namespace escrow
