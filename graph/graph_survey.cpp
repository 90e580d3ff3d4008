// The walk: a graph is identified only if its handle is one that the registry has seen.
#include "graph_survey.hpp"

#include <algorithm>
#include <set>

#include "escrow/core/capture.hpp"
#include "escrow/core/error.hpp"
#include "escrow/detail/graph_query.hpp"
#include "escrow/detail/graph_registry.hpp"
#include "graph_core.hpp"

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

std::vector<cudaGraphNode_t> nodes_of(cudaGraph_t graph) {
  std::size_t count = 0;
  check(cudaGraphGetNodes(graph, nullptr, &count), "cudaGraphGetNodes");
  std::vector<cudaGraphNode_t> nodes(count);
  if (count != 0) check(cudaGraphGetNodes(graph, nodes.data(), &count), "cudaGraphGetNodes");
  return nodes;
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

}  // namespace escrow
