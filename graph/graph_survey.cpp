// A graph is identified only if its handle is one that the registry has seen. References go from
// the graph to a hoist_scope and back; at no step are they without a holder.
#include "graph_survey.hpp"

#include <algorithm>
#include <set>

#include "escrow/core/capture.hpp"
#include "escrow/core/error.hpp"
#include "escrow/detail/deleter_core.hpp"
#include "escrow/detail/graph_query.hpp"
#include "escrow/detail/reference_set.hpp"
#include "escrow/detail/retry_cleanup.hpp"
#include "escrow/graph/graph.hpp"

namespace escrow {

namespace {

class walk {
 public:
  walk(char const* call, survey_root const& root, graph_survey& found)
      : call_(call), root_(root), found_(found) {}

  // All that hangs on the root. Child graphs may be copies, and then of graphs that hold something.
  void visit_root() {
    std::uint64_t const id = root_.key != 0 ? root_.key : identify(root_.handle);
    note(root_.handle, id, root_.is_original);
  }

  // A body of a conditional node is no copy.
  void visit_body(cudaGraph_t body) { note(body, identify(body), true); }

  [[nodiscard]] std::size_t conditionals() const noexcept { return conditionals_; }

 private:
  void note(cudaGraph_t graph, std::uint64_t id, bool is_original) {
    if (id != 0 && graph_registry::global().knows(id)) {
      note_known({graph, id});
    } else if (!is_original) {
      found_.unknown.push_back(graph);
    }
    inner_graphs const inner = inner_graphs_of(graph);
    conditionals_ += inner.conditionals;
    for (cudaGraph_t const child : inner.children) note(child, identify(child), is_blank(child));
  }

  void note_known(identified_graph const& graph) {
    // A body may be named twice.
    if (found_.known_id(graph.graph) == 0) found_.known.push_back(graph);
  }

  [[nodiscard]] bool is_blank(cudaGraph_t child) const {
    return root_.core != nullptr && root_.core->blank_copies.contains(child);
  }

  // What the registry knows the graph by; 0 if it does not.
  std::uint64_t identify(cudaGraph_t graph) const {
    auto const noted = graph_registry::global().find(graph);
    if (!noted) return 0;
    if (noted->is_adopted) return noted->id;
    std::optional<std::uint64_t> const id = graph_id_of(graph);
    if (!id) throw usage_error(call_, "the graph is being captured into", "end the capture first");
    return *id;
  }

  char const* call_;
  survey_root const& root_;
  graph_survey& found_;
  std::size_t conditionals_ = 0;
};

}  // namespace

bool graph_survey::is_unknown(cudaGraph_t graph) const noexcept {
  return std::ranges::find(unknown, graph) != unknown.end();
}

std::uint64_t graph_survey::known_id(cudaGraph_t graph) const noexcept {
  auto const found = std::ranges::find(known, graph, &identified_graph::graph);
  return found == known.end() ? 0 : found->id;
}

std::vector<graph_edge> edges_of(cudaGraph_t graph) {
  std::size_t count = 0;
  check(cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, &count), "cudaGraphGetEdges");
  std::vector<cudaGraphNode_t> from(count);
  std::vector<cudaGraphNode_t> to(count);
  std::vector<cudaGraphEdgeData> data(count);  // without it programmatic edges are an error
  if (count != 0) {
    check(cudaGraphGetEdges(graph, from.data(), to.data(), data.data(), &count),
          "cudaGraphGetEdges");
  }
  std::vector<graph_edge> edges;
  edges.reserve(count);
  for (std::size_t i = 0; i < count; ++i) edges.push_back({from[i], to[i], data[i]});
  return edges;
}

inner_graphs inner_graphs_of(cudaGraph_t graph) {
  inner_graphs inner;
  for (cudaGraphNode_t const node : nodes_of(graph)) {
    cudaGraphNodeType type{};
    check(cudaGraphNodeGetType(node, &type), "cudaGraphNodeGetType");
    if (type == cudaGraphNodeTypeConditional) ++inner.conditionals;
    if (type != cudaGraphNodeTypeGraph) continue;
    cudaGraph_t child = nullptr;
    check(cudaGraphChildGraphNodeGetGraph(node, &child), "cudaGraphChildGraphNodeGetGraph");
    inner.children.push_back(child);
  }
  return inner;
}

survey_root::survey_root(graph const& ours) : core(ours.shared_.get()) {
  if (core == nullptr) return;
  core->seal();
  handle = core->native();
  key = core->key();
  is_original = core->is_original;
}

graph_survey survey_of(char const* call, survey_root const& root,
                       std::span<cudaGraph_t const> bodies) {
  graph_survey found;
  graph_registry const& registry = graph_registry::global();
  if (registry.is_empty()) return found;  // no graph holds anything
  relaxed_capture_scope const relaxed;
  walk walking(call, root, found);
  walking.visit_root();
  found.conditionals = walking.conditionals();
  std::set<cudaGraph_t> all_bodies(bodies.begin(), bodies.end());
  if (root.core != nullptr) all_bodies.insert(root.core->bodies.begin(), root.core->bodies.end());
  for (cudaGraph_t const body : all_bodies) walking.visit_body(body);
  found.lacks_bodies = all_bodies.size() < walking.conditionals();
  return found;
}

graph_survey survey_for_copy(char const* call, graph const& original) {
  graph_survey survey = survey_of(call, original, {});
  // The copy has these sets, too, and must not get what the original gets later.
  for (auto const& each : survey.known) static_cast<void>(graph_registry::global().seal(each.id));
  return survey;
}

void copy_notes::note(cudaGraph_t original, cudaGraph_t copy, std::uint64_t id) {
  around_.blank_copies.erase(copy);  // one that had the handle before may have been blank
  if (std::uint64_t const original_id = originals_.known_id(original); original_id != 0) {
    if (id == 0) id = graph_id_of(copy).value_or(0);
    if (id != 0) graph_registry::global().add_copy(original_id, id, copy);
  } else if (!originals_.is_unknown(original)) {
    blank_.insert(copy);
  }
  // The children of a copy come in the order in which the original has them.
  inner_graphs const from = inner_graphs_of(original);
  inner_graphs const to = inner_graphs_of(copy);
  std::size_t const pairs = std::min(from.children.size(), to.children.size());
  for (std::size_t i = 0; i < pairs; ++i) note(from.children[i], to.children[i], 0);
}

hoist_scope::hoist_scope(graph_survey const& survey) : is_bare_(survey.is_complete()) {
  std::vector<reference_set*> all;
  for (auto const& on : survey.known) {
    for (auto const& each : graph_registry::global().seal(on.id)) {
      placed_.push_back({on.graph, on.id, each.set, each.object});
      all.push_back(each.set);
    }
  }
  std::ranges::sort(all);
  all.erase(std::unique(all.begin(), all.end()), all.end());
  for (reference_set* const each : all) sets_.emplace_back(*each);
  try {
    for (; off_ < placed_.size(); ++off_) take_off(placed_[off_]);
  } catch (...) {
    put_back_all();
    throw;
  }
}

hoist_scope::~hoist_scope() {
  put_back_all();
}

void hoist_scope::take_off(taken const& each) {
  check(cudaUserObjectRetain(each.object, 1), "cudaUserObjectRetain");
  cudaError_t const status = cudaGraphReleaseUserObject(each.graph, each.object, 1);
  if (status == cudaSuccess) return;
  release_object(each.object, each.set->core());
  check(status, "cudaGraphReleaseUserObject");
}

void hoist_scope::put_back_all() noexcept {
  for (; off_ != 0; --off_) {
    taken const& each = placed_[off_ - 1];
    cudaError_t status = cudaSuccess;
    bool const is_back = retry_cleanup([&] {
      status = cudaGraphRetainUserObject(each.graph, each.object, 1, cudaGraphUserObjectMove);
      return status;
    });
    if (is_back) continue;
    // The reference is leaked, since nothing will tell when the graph is destroyed.
    deleter_core& core = each.set->core();
    core.count_leaked();
    core.report(status, "cudaGraphRetainUserObject");
  }
}

void hoist_scope::keep_off() noexcept {
  for (; off_ != 0; --off_) {
    taken const& each = placed_[off_ - 1];
    graph_registry::global().remove(*each.set, each.graph_id);
    release_object(each.object, each.set->core());
  }
}

}  // namespace escrow
