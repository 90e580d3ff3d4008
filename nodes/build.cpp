// SPDX-License-Identifier: Apache-2.0
// Adding nodes; what they keep is graph_core's.
#include "escrow/nodes/build.hpp"

#include <algorithm>
#include <vector>

#include "escrow/detail/cuda12.hpp"
#include "escrow/internal/graph_registry.hpp"
#include "graph_core.hpp"
#include "node_notes.hpp"

namespace escrow::inline v0_2 {

namespace {
constexpr char const* adding = "graph_builder_ref::add";
}  // namespace

graph_builder_ref::graph_builder_ref(graph const& into) noexcept
    : core_(into.core()), in_(graph_ref(into).get()), is_empty_(false) {}

// In the library, where a program's ThreadSanitizer does not see the graph's count.
graph_builder_ref::graph_builder_ref(graph_builder_ref const&) noexcept = default;
graph_builder_ref::graph_builder_ref(graph_builder_ref&&) noexcept = default;
graph_builder_ref& graph_builder_ref::operator=(graph_builder_ref const&) noexcept = default;
graph_builder_ref& graph_builder_ref::operator=(graph_builder_ref&&) noexcept = default;
graph_builder_ref::~graph_builder_ref() = default;
body_graph::body_graph(body_graph const&) noexcept = default;
body_graph::body_graph(body_graph&&) noexcept = default;
body_graph& body_graph::operator=(body_graph const&) noexcept = default;
body_graph& body_graph::operator=(body_graph&&) noexcept = default;
body_graph::~body_graph() = default;

body_graph body_graph::kept() const noexcept {
  body_graph its = *this;
  its.kept_ = core_.lock();
  return its;
}

graph_core& graph_builder_ref::require(char const* call) const {
  if (is_empty_) {
    throw usage_error(call, "the node, or place, is empty: it is of no graph",
                      "use what add() or build() returned");
  }
  graph_core& core = detail::require_graph(call, core_.lock().get());
  if (!core.has_body(body_)) {
    throw usage_error(call, "the node, or place, is in a body that was destroyed with its node",
                      "use it before the destroy() of the conditional node");
  }
  if (core.has_ended(after_, made_at_)) {
    throw usage_error(call, "the node was destroyed", "use it before its destroy()");
  }
  return core;
}

void graph_builder_ref::require_beside(char const* call, std::string const& argument,
                                       node const& other) const {
  auto const refuse = [&](char const* problem, char const* advice) {
    throw usage_error(call, argument + problem, advice);
  };
  if (other.is_empty_) {
    refuse(" is an empty node: it is of no graph", "pass what add() returned");
  }
  std::shared_ptr<graph_core> const core = core_.lock();
  if (other.body_ != body_ || other.core_.lock() != core) {
    refuse(" is a node of another graph, or of another body", "pass nodes of one graph");
  }
  if (core != nullptr && core->has_ended(other.after_, other.made_at_)) {
    refuse(" is a node that was destroyed", "pass a node that is there");
  }
}

node graph_builder_ref::node_of(cudaGraphNode_t handle) const noexcept {
  std::shared_ptr<graph_core> const core = core_.lock();
  return core != nullptr ? node_of(handle, *core) : node();
}

node graph_builder_ref::node_of(cudaGraphNode_t handle, graph_core const& core) const noexcept {
  if (handle == nullptr) return {};
  graph_builder_ref place = *this;
  place.after_ = handle;
  place.made_at_ = core.nodes_ended;
  return node(std::move(place));
}

node graph_builder_ref::add_node(graph_core& core, detail::node_draft& draft) const {
  std::size_t const count = after_ == nullptr ? 0 : 1;
  auto const call = [&] {
    return core.add(in_, {&after_, count}, draft.params,
                    {std::move(draft.payload), std::move(draft.shared)}, draft.attributes);
  };
  auto const why = [&](cudaError_t status) { return add_note(status, draft.params); };
  return node_of(with_note(call, why), core);
}

allocation graph_builder_ref::add(alloc_kind const& kind, source_location where) const {
  return detail::called_at(adding, where, [&]() -> allocation {
    detail::node_draft draft{kind.params, {}};
    draft.params.alloc.accessDescs = kind.access.data();
    draft.params.alloc.accessDescCount = kind.access.size();
    node const made = add_node(require(adding), draft);
    return {made, draft.params.alloc.dptr, draft.params.alloc.bytesize};
  });
}

node graph_builder_ref::add(child_kind const& kind, source_location where) const {
  return detail::called_at(adding, where, [&]() -> node {
    static_cast<void>(require(adding));
    std::size_t const count = after_ == nullptr ? 0 : 1;
    return node_of(graph::embed(adding, kind.child.get(), in_, {&after_, count}));
  });
}

conditional_node graph_builder_ref::add(conditional_kind const& kind, source_location where) const {
  return detail::called_at(adding, where, [&]() -> conditional_node {
    graph_core& core = require(adding);
    bool const is_of_graph = kind.tested.of_.lock().get() == &core;
    std::uint64_t const home = is_of_graph ? core.home_of(kind.tested.body_) : 0;
    bool const is_anywhere = home == 0 && kind.tested.body_ != 0;  // its body was destroyed
    if (!is_of_graph || (home != body_ && !is_anywhere)) {
      throw usage_error(kind.name, "the condition is of another graph, or of another body",
                        "call make_condition() where the node is added");
    }
    if (core.is_tested(kind.tested.get())) {
      throw usage_error(kind.name, "the condition has a node already",
                        "call make_condition() for each conditional node");
    }
    std::vector<body_graph> bodies;
    bodies.reserve(kind.bodies);
    core.bodies.reserve(core.bodies.size() + kind.bodies);
    detail::node_draft draft;
    cudaGraphNodeParams& params = draft.params;
    params.type = cudaGraphNodeTypeConditional;
    params.conditional.handle = kind.tested.get();
    params.conditional.type = kind.type;
    params.conditional.size = kind.bodies;
    node const made = add_node(core, draft);
    for (unsigned i = 0; i < kind.bodies; ++i) {
      cudaGraph_t const body = params.conditional.phGraph_out[i];
      core.bodies.push_back({made.get(), body, ++core.bodies_made, kind.tested.get()});
      graph_registry::global().add_body(body);
      bodies.push_back(body_graph(core_.lock(), body, core.bodies_made));
    }
    return {made, std::move(bodies)};
  });
}

node graph_builder_ref::join(source_location where) const {
  return join({}, where);
}

node graph_builder_ref::join(std::vector<node> const& others, source_location where) const {
  constexpr char const* call = "graph_builder_ref::join";
  return detail::called_at(call, where, [&]() -> node {
    graph_core& core = require(call);
    std::vector<cudaGraphNode_t> after;
    if (after_ != nullptr) after.push_back(after_);
    for (node const& each : others) {
      require_beside(call, "one of `others`", each);
      if (std::ranges::find(after, each.after_) == after.end()) after.push_back(each.after_);
    }
    cudaGraphNodeParams params{};
    params.type = cudaGraphNodeTypeEmpty;
    return node_of(core.add(in_, after, params, {}));
  });
}

condition graph_builder_ref::make_condition(unsigned initial, source_location where) const {
  return detail::called_at("graph_builder_ref::make_condition", where, [&]() -> condition {
    static_cast<void>(require("graph_builder_ref::make_condition"));
    cudaGraphConditionalHandle made{};
    check(cudaGraphConditionalHandleCreate(&made, in_, initial, cudaGraphCondAssignDefault),
          "cudaGraphConditionalHandleCreate");
    return condition(made, core_, body_);
  });
}

cudaGraph_t body_graph::get(source_location where) const {
  return detail::called_at("body_graph::get", where, [&]() -> cudaGraph_t {
    static_cast<void>(require("body_graph::get").expose());
    return in_;
  });
}

}  // namespace escrow::inline v0_2
