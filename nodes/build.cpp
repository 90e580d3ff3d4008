// Adding nodes; what they keep is graph_core's.
#include "escrow/nodes/build.hpp"

#include "escrow/core/error.hpp"
#include "escrow/detail/cuda12.hpp"
#include "graph_core.hpp"

namespace escrow::inline v0_1 {

namespace {
constexpr char const* adding = "graph_builder_ref::add";
}  // namespace

graph_builder_ref::graph_builder_ref(graph const& into) noexcept
    : core_(into.core()), in_(into.core() == nullptr ? nullptr : into.core()->native()) {}

graph_core& graph_builder_ref::require(char const* call) const {
  return detail::require_graph(call, core_.lock().get());
}

bool graph_builder_ref::is_of_same_graph(node const& other) const noexcept {
  return other.in_ == in_ && other.core_.lock() == core_.lock();
}

node graph_builder_ref::node_of(cudaGraphNode_t handle) const noexcept {
  graph_builder_ref place = *this;
  place.after_ = handle;
  return node(std::move(place));
}

node graph_builder_ref::add_node(graph_core& core, cudaGraphNodeParams& params,
                                 retired_object::loan payload) const {
  std::size_t const count = after_ == nullptr ? 0 : 1;
  return node_of(core.add(in_, {&after_, count}, params, std::move(payload)));
}

allocation graph_builder_ref::add(alloc_kind const& kind, source_location where) const {
  return detail::called_at(adding, where, [&]() -> allocation {
    cudaGraphNodeParams params = kind.params;
    node const made = add_node(require(adding), params, {});
    return {made, params.alloc.dptr, params.alloc.bytesize};
  });
}

node graph_builder_ref::add(child_kind const& kind, source_location where) const {
  return detail::called_at(adding, where, [&]() -> node {
    static_cast<void>(require(adding));
    std::size_t const count = after_ == nullptr ? 0 : 1;
    return node_of(kind.child.embed_in(adding, in_, {&after_, count}));
  });
}

conditional_node graph_builder_ref::add(conditional_kind const& kind, source_location where) const {
  return detail::called_at(adding, where, [&]() -> conditional_node {
    graph_core& core = require(adding);
    if (kind.tested.in_ != in_) {
      throw usage_error(kind.name, "the condition is of another graph, or of another body",
                        "call make_condition() where the node is added");
    }
    std::vector<body_graph> bodies;
    bodies.reserve(kind.bodies);
    core.bodies.reserve(core.bodies.size() + kind.bodies);
    cudaGraphNodeParams params{};
    params.type = cudaGraphNodeTypeConditional;
    params.conditional.handle = kind.tested.get();
    params.conditional.type = kind.type;
    params.conditional.size = kind.bodies;
    node const made = add_node(core, params, {});
    for (unsigned i = 0; i < kind.bodies; ++i) {
      cudaGraph_t const body = params.conditional.phGraph_out[i];
      core.bodies.push_back(body);
      bodies.push_back(body_graph(core_.lock(), body));
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
      if (!is_of_same_graph(each)) {
        throw usage_error(call, "one of `others` is a node of another graph, or of another body",
                          "join nodes of one graph");
      }
      if (each.after_ != after_) after.push_back(each.after_);
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
    return condition(made, in_);
  });
}

cudaGraph_t body_graph::get(source_location where) const {
  return detail::called_at("body_graph::get", where, [&]() -> cudaGraph_t {
    static_cast<void>(require("body_graph::get").expose());
    return in_;
  });
}

node const& node::after(node const& other, source_location where) const {
  constexpr char const* call = "node::after";
  detail::called_at(call, where, [&] {
    static_cast<void>(require(call));
    if (!is_of_same_graph(other)) {
      throw usage_error(call, "`other` is a node of another graph, or of another body",
                        "order nodes of one graph");
    }
    check(cudaGraphAddDependencies(in_, &other.after_, &after_, nullptr, 1),
          "cudaGraphAddDependencies");
  });
  return *this;
}

void node::set_params(cudaGraphNodeParams& params, retired_object::loan payload) const {
  require("node::set").set(get(), params, std::move(payload));
}

graph_core& node::core_in(graph_exec const& exec) const {
  constexpr char const* call = "set";
  std::shared_ptr<graph_core> const source = exec.source(call);
  bool const is_there = source != nullptr && source->native() != nullptr;
  if (is_there && core_.lock() == source) return *source;
  throw usage_error(
      call, "the node is not of the graph that the exec was created from, or that is destroyed",
      "make the exec of a `graph`, and keep that while nodes of it are used");
}

void node::destroy(source_location where) const {
  detail::called_at("node::destroy", where, [&] {
    graph_core& core = require("node::destroy");
    cudaGraphNodeType type{};
    check(cudaGraphNodeGetType(get(), &type), "cudaGraphNodeGetType");
    if (type == cudaGraphNodeTypeConditional) {
      throw usage_error("node::destroy", "the node is conditional",
                        "build the graph anew: CUDA cannot instantiate one whose condition has no "
                        "node");
    }
    core.destroy(get());
  });
}

}  // namespace escrow::inline v0_1
