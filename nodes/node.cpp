// SPDX-License-Identifier: Apache-2.0
// Nodes: read, changed and destroyed, in a graph or in an exec.
#include <string_view>
#include <utility>

#include "escrow/detail/cuda12.hpp"
#include "escrow/nodes/build.hpp"
#include "exec_state.hpp"
#include "graph_core.hpp"
#include "kernel_attributes.hpp"
#include "node_notes.hpp"

namespace escrow::inline v0_2 {

namespace {

cudaGraphNodeParams child_params() {
  cudaGraphNodeParams params{};
  params.type = cudaGraphNodeTypeGraph;
  return params;
}

bool is_on_host(void const* memory) noexcept {
  cudaPointerAttributes its{};
  return succeeded(cudaPointerGetAttributes(&its, memory)) &&
         (its.type == cudaMemoryTypeHost || its.type == cudaMemoryTypeUnregistered);
}

// A copy in an exec keeps the cudaMemcpyKind that its node was captured with: neither set() nor an
// update may give it another one (measured). So it is taken from the node, if the new addresses
// have it.
void keep_copy_kind(cudaGraphNode_t node, cudaGraphNodeParams& params) noexcept {
  if (params.type != cudaGraphNodeTypeMemcpy) return;
  cudaMemcpy3DParms now{};
  cudaMemcpy3DParms& given = params.memcpy.copyParams;
  if (!succeeded(cudaGraphMemcpyNodeGetParams(node, &now)) || now.kind == cudaMemcpyDefault) return;
  bool const is_from_host = is_on_host(given.srcPtr.ptr);
  bool const is_to_host = is_on_host(given.dstPtr.ptr);
  cudaMemcpyKind const from_host = is_to_host ? cudaMemcpyHostToHost : cudaMemcpyHostToDevice;
  cudaMemcpyKind const from_device = is_to_host ? cudaMemcpyDeviceToHost : cudaMemcpyDeviceToDevice;
  if (now.kind == (is_from_host ? from_host : from_device)) given.kind = now.kind;
}

// Nodes of the graph of `place`. `read`: CUDA's call, which tells the number if it gets no place.
template <class Read>
std::vector<node> nodes_by(Read const& read, char const* api, graph_builder_ref const& place) {
  std::size_t count = 0;
  check(read(nullptr, nullptr, &count), api);
  std::vector<cudaGraphNode_t> found(count);
  std::vector<cudaGraphEdgeData> edges(count);  // without it, CUDA refuses edges that have some
  if (count != 0) check(read(found.data(), edges.data(), &count), api);
  std::vector<node> nodes;
  for (cudaGraphNode_t const each : found) nodes.push_back(place.node_of(each));
  return nodes;
}

}  // namespace

std::vector<node> node::predecessors(source_location where) const {
  constexpr char const* call = "node::predecessors";
  return detail::called_at(call, where, [&] {
    static_cast<void>(require(call));
    auto const read = [this](auto... out) { return cudaGraphNodeGetDependencies(get(), out...); };
    return nodes_by(read, "cudaGraphNodeGetDependencies", *this);
  });
}

std::vector<node> node::successors(source_location where) const {
  constexpr char const* call = "node::successors";
  return detail::called_at(call, where, [&] {
    static_cast<void>(require(call));
    auto const read = [this](auto... out) { return cudaGraphNodeGetDependentNodes(get(), out...); };
    return nodes_by(read, "cudaGraphNodeGetDependentNodes", *this);
  });
}

node const& node::after(node const& other, source_location where) const {
  constexpr char const* call = "node::after";
  detail::called_at(call, where, [&] {
    static_cast<void>(require(call));
    require_beside(call, "`other`", other);
    if (other.after_ == after_) {
      throw usage_error(call, "`other` is the node itself", "pass a node that runs before it");
    }
    cudaError_t const status = cudaGraphAddDependencies(in_, &other.after_, &after_, nullptr, 1);
    bool const is_refused = status == cudaErrorInvalidValue;
    check(status, "cudaGraphAddDependencies", source_location::current(),
          is_refused ? "the node waits for `other` already, or one of them was destroyed: see "
                       "predecessors()"
                     : std::string_view());
  });
  return *this;
}

void node::set_params(detail::node_draft& draft) const {
  keep_copy_kind(get(), draft.params);
  auto const call = [&] {
    require("node::set")
        .set(get(), draft.params, {std::move(draft.payload), std::move(draft.shared)},
             draft.attributes);
  };
  with_note(call, [&](cudaError_t status) {
    return change_note(status, get(), draft.params, have_clusters(draft.attributes));
  });
}

void node::set_params_in(graph_exec& exec, detail::node_draft& draft) const {
  if (!draft.attributes.empty()) {
    throw usage_error("set", "`kind` has launch attributes, which CUDA does not change in an exec",
                      "leave them out, and the exec keeps those that it has; for others change the "
                      "node by node::set, and make another graph_exec");
  }
  keep_copy_kind(get(), draft.params);
  auto const call = [&] {
    exec.require("graph_exec::set_node")
        .set(get(), draft.params, {std::move(draft.payload), std::move(draft.shared)});
  };
  with_note(call, [&](cudaError_t status) {
    return exec_note(
        status, get(), draft.params,
        "the node is younger than the exec, or CUDA cannot change it so in one: change "
        "the node, and make another graph_exec");
  });
}

graph_core& node::core_in(char const* call, graph_exec const& exec) const {
  std::shared_ptr<graph_core> const source = exec.require(call).source();
  if (is_empty_) return require(call);  // which throws
  bool const is_there = source != nullptr && source->native() != nullptr;
  if (is_there && core_.lock() == source) return require(call);
  throw usage_error(
      call, "the node is not of the graph that the exec was created from, or that is destroyed",
      "make the exec of a `graph`, and keep that while nodes of it are used");
}

void node::destroy(source_location where) const {
  detail::called_at("node::destroy", where, [&] {
    graph_core& core = require("node::destroy");
    with_note([&] { core.destroy(get(), body_); }, destroy_note);
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
    with_note([&] { exec.require(call).set_child(changed.get(), kind.child.get()); },
              [&](cudaError_t status) {
                return exec_note(
                    status, changed.get(), child_params(),
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
    with_note([&] { exec.require(call).set_enabled(changed.get(), is_enabled); },
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

}  // namespace escrow::inline v0_2
