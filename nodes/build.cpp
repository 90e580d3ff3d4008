// Adding nodes; what they keep is graph_core's.
#include "escrow/nodes/build.hpp"

#include <algorithm>
#include <array>

#include "escrow/detail/cuda12.hpp"
#include "graph_core.hpp"

namespace escrow::inline v0_1 {

namespace {
constexpr char const* adding = "graph_builder_ref::add";

char const* name_of(cudaGraphNodeType type) noexcept {
  static constexpr std::array<std::pair<cudaGraphNodeType, char const*>, 11> names{
      {{cudaGraphNodeTypeKernel, "kernel"},
       {cudaGraphNodeTypeMemcpy, "memcpy"},
       {cudaGraphNodeTypeMemset, "memset"},
       {cudaGraphNodeTypeHost, "host"},
       {cudaGraphNodeTypeGraph, "child"},
       {cudaGraphNodeTypeEmpty, "empty"},
       {cudaGraphNodeTypeWaitEvent, "wait"},
       {cudaGraphNodeTypeEventRecord, "record"},
       {cudaGraphNodeTypeMemAlloc, "alloc"},
       {cudaGraphNodeTypeMemFree, "free"},
       {cudaGraphNodeTypeConditional, "conditional"}}};
  auto const is_it = [type](auto const& each) { return each.first == type; };
  auto const* const found = std::ranges::find_if(names, is_it);
  return found == names.end() ? "other" : found->second;
}

// Calls `call`; a cuda_error that leaves it gets what `note` tells of its status.
template <class Call, class Note>
decltype(auto) with_note(Call const& call, Note const& note) {
  try {
    return call();
  } catch (cuda_error const& failed) {
    std::string const text = note(failed.status());
    if (text.empty()) throw;
    throw cuda_error(failed.status(), failed.api(), failed.where(), text);
  }
}

// Why CUDA refuses a kernel of this shape, if it is one.
std::string kernel_note(cudaError_t status, cudaGraphNodeParams const& params) {
  if (params.type != cudaGraphNodeTypeKernel) return "";
  auto const& its = params.kernel;
  launch_config const config{
      .grid = its.gridDim, .block = its.blockDim, .shared_bytes = its.sharedMemBytes};
  return detail::misfit_note(status, kernel(static_cast<void const*>(its.func)), config);
}

// Why CUDA refuses to add a node with these parameters, if that is known.
std::string add_note(cudaError_t status, cudaGraphNodeParams const& params) {
  if (params.type != cudaGraphNodeTypeMemFree || status != cudaErrorInvalidValue) {
    return kernel_note(status, params);
  }
  return "`address` is not memory of an alloc_node, or another node frees it: free each allocation "
         "once, by its address()";
}

// Why CUDA refuses these parameters for a node that is there, if that is known.
std::string change_note(cudaError_t status, cudaGraphNode_t changed,
                        cudaGraphNodeParams const& params) {
  if (status != cudaErrorInvalidValue && status != cudaErrorNotSupported) {
    return kernel_note(status, params);
  }
  cudaGraphNodeType type{};
  if (!succeeded(cudaGraphNodeGetType(changed, &type))) return "";
  if (type != params.type) {
    return std::string("the node is of kind ") + name_of(type) + ", `kind` is of kind " +
           name_of(params.type) + ": destroy the node, and add another";
  }
  if (type == cudaGraphNodeTypeMemFree) {
    return "CUDA does not change a node that frees memory: destroy it, and add another";
  }
  return kernel_note(status, params);
}

bool is_refusal(cudaError_t status) noexcept {
  return status == cudaErrorInvalidValue || status == cudaErrorNotSupported ||
         status == cudaErrorGraphExecUpdateFailure;
}

cudaGraphNodeParams child_params() {
  cudaGraphNodeParams params{};
  params.type = cudaGraphNodeTypeGraph;
  return params;
}

// Why CUDA refuses to disable a node of an exec, or to tell whether it is.
std::string switch_note(cudaError_t status, cudaGraphNode_t asked) {
  cudaGraphNodeType type{};
  if (status != cudaErrorInvalidValue || !succeeded(cudaGraphNodeGetType(asked, &type))) return "";
  if (type == cudaGraphNodeTypeKernel || type == cudaGraphNodeTypeMemset ||
      type == cudaGraphNodeTypeMemcpy) {
    return "the node is younger than the exec: make another graph_exec";
  }
  return std::string("the node is of kind ") + name_of(type) +
         ": CUDA disables kernels, memsets and memcpies only";
}

std::string destroy_note(cudaError_t status) {
  if (status != cudaErrorNotSupported) return "";
  return "CUDA removes no node from a graph with memory nodes: build the graph anew, without it";
}

}  // namespace

graph_builder_ref::graph_builder_ref(graph const& into) noexcept
    : core_(into.core()), in_(graph_ref(into).get()), standing_(standing::there) {}

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

graph_core& graph_builder_ref::require(char const* call) const {
  if (standing_ == standing::empty) {
    throw usage_error(call, "the node, or place, is empty: it is of no graph",
                      "use what add() or build() returned");
  }
  if (standing_ == standing::destroyed) {
    throw usage_error(call, "the node was destroyed", "use it before its destroy()");
  }
  graph_core& core = detail::require_graph(call, core_.lock().get());
  if (!core.has(in_)) {
    throw usage_error(call, "the node, or place, is in a body that was destroyed with its node",
                      "use it before the destroy() of the conditional node");
  }
  return core;
}

void graph_builder_ref::require_beside(char const* call, std::string const& argument,
                                       node const& other) const {
  auto const refuse = [&](char const* problem, char const* advice) {
    throw usage_error(call, argument + problem, advice);
  };
  if (other.standing_ == standing::empty) {
    refuse(" is an empty node: it is of no graph", "pass what add() returned");
  }
  if (other.standing_ == standing::destroyed) {
    refuse(" is a node that was destroyed", "pass a node that is there");
  }
  if (other.in_ != in_ || other.core_.lock() != core_.lock()) {
    refuse(" is a node of another graph, or of another body", "pass nodes of one graph");
  }
}

node graph_builder_ref::node_of(cudaGraphNode_t handle) const noexcept {
  graph_builder_ref place = *this;
  place.after_ = handle;
  if (place.standing_ == standing::destroyed) place.standing_ = standing::there;
  return node(std::move(place));
}

node graph_builder_ref::add_node(graph_core& core, detail::node_draft& draft) const {
  std::size_t const count = after_ == nullptr ? 0 : 1;
  auto const call = [&] {
    return core.add(in_, {&after_, count}, draft.params, std::move(draft.payload));
  };
  return node_of(
      with_note(call, [&](cudaError_t status) { return add_note(status, draft.params); }));
}

allocation graph_builder_ref::add(alloc_kind const& kind, source_location where) const {
  return detail::called_at(adding, where, [&]() -> allocation {
    detail::node_draft draft{kind.params, {}};
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
    if (kind.tested.in_ != in_) {
      throw usage_error(kind.name, "the condition is of another graph, or of another body",
                        "call make_condition() where the node is added");
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
      core.bodies.push_back({made.get(), body});
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
      require_beside(call, "one of `others`", each);
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
    require_beside(call, "`other`", other);
    check(cudaGraphAddDependencies(in_, &other.after_, &after_, nullptr, 1),
          "cudaGraphAddDependencies");
  });
  return *this;
}

void node::set_params(detail::node_draft& draft) const {
  auto const call = [&] {
    require("node::set").set(get(), draft.params, std::move(draft.payload));
  };
  with_note(call, [&](cudaError_t status) { return change_note(status, get(), draft.params); });
}

void node::set_params_in(graph_exec& exec, detail::node_draft& draft) const {
  auto const call = [&] { exec.set_node(get(), draft.params, std::move(draft.payload)); };
  with_note(call, [&](cudaError_t status) {
    std::string known = change_note(status, get(), draft.params);
    if (!known.empty() || !is_refusal(status)) return known;
    return std::string(
        "the node is younger than the exec, or CUDA cannot change it so in one: change the node, "
        "and make another graph_exec");
  });
}

graph_core& node::core_in(char const* call, graph_exec const& exec) const {
  std::shared_ptr<graph_core> const source = exec.source(call);
  if (standing_ != standing::there) return require(call);  // which throws
  bool const is_there = source != nullptr && source->native() != nullptr;
  if (is_there && core_.lock() == source) return *source;
  throw usage_error(
      call, "the node is not of the graph that the exec was created from, or that is destroyed",
      "make the exec of a `graph`, and keep that while nodes of it are used");
}

void node::destroy(source_location where) const {
  detail::called_at("node::destroy", where, [&] {
    graph_core& core = require("node::destroy");
    with_note([&] { core.destroy(get()); }, destroy_note);
    standing_ = standing::destroyed;
  });
}

void node::set(child_kind const& kind, source_location where) const {
  constexpr char const* call = "node::set";
  detail::called_at(call, where, [&] {
    graph_core& core = require(call);
    with_note([&] { graph::embed_anew(call, kind.child.get(), core, in_, get()); },
              [&](cudaError_t status) { return change_note(status, get(), child_params()); });
  });
}

void set(graph_exec& exec, node const& changed, child_kind const& kind, source_location where) {
  constexpr char const* call = "set";
  detail::called_at(call, where, [&] {
    static_cast<void>(changed.core_in(call, exec));
    with_note([&] { exec.set_child(changed.get(), kind.child.get()); },
              [&](cudaError_t status) {
                std::string const known = change_note(status, changed.get(), child_params());
                if (!known.empty() || !is_refusal(status)) return known;
                return std::string(
                    "the graph of `kind` must have the nodes and edges of the one that the exec "
                    "runs, and the node must not be younger than the exec: else change the node by "
                    "node::set, and make another graph_exec");
              });
  });
}

void set_enabled(graph_exec& exec, node const& changed, bool is_enabled, source_location where) {
  constexpr char const* call = "set_enabled";
  detail::called_at(call, where, [&] {
    static_cast<void>(changed.core_in(call, exec));
    with_note([&] { exec.set_enabled(changed.get(), is_enabled); },
              [&](cudaError_t status) { return switch_note(status, changed.get()); });
  });
}

bool is_enabled(graph_exec const& exec, node const& asked, source_location where) {
  constexpr char const* call = "is_enabled";
  return detail::called_at(call, where, [&] {
    static_cast<void>(asked.core_in(call, exec));
    unsigned is_it = 0;
    auto const ask = [&] {
      check(cudaGraphNodeGetEnabled(exec.get(), asked.get(), &is_it), "cudaGraphNodeGetEnabled");
    };
    with_note(ask, [&](cudaError_t status) { return switch_note(status, asked.get()); });
    return is_it != 0;
  });
}

}  // namespace escrow::inline v0_1
