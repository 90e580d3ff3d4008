// Graphs: checked calls, copies that the registry knows, and an end that harms no capture.
#include "escrow/graph/graph.hpp"

#include <unordered_set>
#include <utility>
#include <vector>

#include "copy_notes.hpp"
#include "escrow/core/error.hpp"
#include "escrow/core/graph_lifetime_lock.hpp"
#include "escrow/deleter/deleter.hpp"
#include "escrow/deleter/graph_registry.hpp"
#include "escrow/detail/graph_query.hpp"
#include "escrow/detail/retry_cleanup.hpp"
#include "graph_core.hpp"
#include "graph_survey.hpp"

namespace escrow {

namespace {

// The nodes for whose end nothing waits yet.
std::vector<cudaGraphNode_t> last_nodes(cudaGraph_t graph) {
  std::vector<cudaGraphNode_t> nodes = nodes_of(graph);
  std::unordered_set<cudaGraphNode_t> awaited;
  for (graph_edge const& each : edges_of(graph)) {
    if (is_full_dependency(each.data)) awaited.insert(each.from);
  }
  std::erase_if(nodes, [&awaited](cudaGraphNode_t node) { return awaited.contains(node); });
  return nodes;
}

cudaGraph_t new_graph() {
  cudaGraph_t made = nullptr;
  check(cudaGraphCreate(&made, 0), "cudaGraphCreate");
  return made;
}

// Owns the graph from here on, whatever happens.
std::shared_ptr<graph_core> core_of(cudaGraph_t native, std::uint64_t id, bool is_exposed) {
  try {
    return std::make_shared<graph_core>(native, id, is_exposed);
  } catch (...) {
    destroy_graph(native);
    throw;
  }
}

cudaGraph_t clone_of(cudaGraph_t original) {
  graph_lifetime_lock const turn;
  cudaGraph_t made = nullptr;
  check(cudaGraphClone(&made, original), "cudaGraphClone");
  return made;
}

cudaGraphNode_t child_node_of(cudaGraph_t child, cudaGraph_t parent,
                              std::span<cudaGraphNode_t const> after) {
  graph_lifetime_lock const turn;
  cudaGraphNode_t made = nullptr;
  check(cudaGraphAddChildGraphNode(&made, parent, after.data(), after.size(), child),
        "cudaGraphAddChildGraphNode");
  return made;
}

// A graph that `make` makes, with its id.
template <class Make>
std::shared_ptr<graph_core> make_identified(Make make) {
  auto made = core_of(make(), 0, false);
  made->try_identify();
  return made;
}

}  // namespace

graph::graph(std::shared_ptr<graph_core> core) noexcept
    : insertion_point(core, core->native()), shared_(std::move(core)) {}

graph::graph() : graph(core_of(new_graph(), 0, false)) {
  shared_->is_original = true;
}

graph::graph(deleter& keeper) : graph() {
  shared_->set_keeper(keeper.hub());
}

graph::graph(cudaGraph_t native, std::uint64_t id) : graph(core_of(native, id, true)) {}

graph::graph(graph&& other) noexcept
    : insertion_point(std::exchange(static_cast<insertion_point&>(other), insertion_point())),
      shared_(std::move(other.shared_)) {}

graph& graph::operator=(graph&& other) noexcept {
  graph taken(std::move(other));
  std::swap(static_cast<insertion_point&>(*this), static_cast<insertion_point&>(taken));
  std::swap(shared_, taken.shared_);
  return *this;
}

graph::~graph() = default;

cudaGraph_t graph::get() const {
  return shared_ == nullptr ? nullptr : shared_->expose();
}

std::uint64_t graph::id() const noexcept {
  return shared_ == nullptr ? 0 : shared_->id();
}

cudaGraph_t graph::detach() {
  return shared_ == nullptr ? nullptr : shared_->detach();
}

graph graph::clone() const {
  graph_core& core = require("graph::clone");
  graph_survey const survey = survey_for_copy("graph::clone", *this);
  cudaGraph_t const original = core.native();
  bool const holds_something = survey.known_id(original) != 0;
  auto const make = [original] { return clone_of(original); };
  graph copy(holds_something ? make_identified(make) : core_of(make(), 0, false));
  graph_core& its = *copy.shared_;
  copy_notes notes(survey, its);
  notes.note(original, its.native(), its.id());
  notes.commit();
  its.is_original = !survey.is_unknown(original);
  its.copy_payloads(core);
  return copy;
}

cudaGraphNode_t graph::embed_in(char const* call, graph_core& parent, cudaGraph_t in,
                                std::span<cudaGraphNode_t const> after) const {
  graph_core& core = require(call);
  graph_survey const survey = survey_for_copy(call, *this);
  cudaGraphNode_t const node = child_node_of(core.native(), in, after);
  copy_notes notes(survey, parent);
  try {
    cudaGraph_t copy = nullptr;
    check(cudaGraphChildGraphNodeGetGraph(node, &copy), "cudaGraphChildGraphNodeGetGraph");
    notes.note(core.native(), copy, 0);
    notes.commit();
  } catch (...) {
    cudaError_t status = cudaSuccess;
    auto const take_off = [&] {
      graph_lifetime_lock const turn;
      return status = cudaGraphDestroyNode(node);
    };
    if (retry_cleanup_relaxed(take_off) || is_sticky(status)) throw;
    // CUDA takes none off a graph that has memory nodes. The child is there as it was asked for;
    // its handle, which is not known, may be that of a copy that held nothing.
    parent.blank_copies.clear();
  }
  parent.note_reshaped();
  return node;
}

node graph::add_child(graph const& child) {
  graph_core& core = require("graph::add_child");
  std::vector<cudaGraphNode_t> const last = last_nodes(core.native());
  return node_of(child.embed_in("graph::add_child", core, core.native(), last));
}

std::vector<node> graph::nodes() const {
  return insertion_point::nodes_of(escrow::nodes_of(require("graph::nodes").native()));
}

std::vector<std::pair<node, node>> graph::edges() const {
  std::vector<std::pair<node, node>> result;
  for (graph_edge const& each : edges_of(require("graph::edges").native())) {
    result.emplace_back(node_of(each.from), node_of(each.to));
  }
  return result;
}

void graph::write_dot(std::filesystem::path const& file, unsigned flags) const {
  check(cudaGraphDebugDotPrint(require("graph::write_dot").native(), file.c_str(), flags),
        "cudaGraphDebugDotPrint");
}

resource_usage graph::held() const {
  std::vector<std::uint64_t> ids;
  for (auto const& each : survey_of("graph::held", *this, {}).known) ids.push_back(each.id);
  return graph_registry::global().describe(ids);
}

}  // namespace escrow
