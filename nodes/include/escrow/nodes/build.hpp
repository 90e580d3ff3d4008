// SPDX-License-Identifier: Apache-2.0
// Building graphs by hand: places where nodes are added, and nodes that are changed.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "escrow/core/error.hpp"
#include "escrow/graph/graph.hpp"
#include "escrow/graph/graph_exec.hpp"
#include "escrow/nodes/any_kind.hpp"
#include "escrow/nodes/node_kinds.hpp"
#include "escrow/version.hpp"

namespace escrow::inline v0_2 {

class allocation;
class conditional_node;
class node;

// What: a place in a graph, where nodes are added: build(graph) gives the one at its beginning,
//   where a node waits for nothing, as in a body; a node is the place after it. What an argument of
//   a kind owns is kept by the graph, its clones, execs and their launches. The graph keeps it
//   until the node is destroyed, or the graph is next used after the node was changed. Execs and
//   clones that were made before keep it. CUDA decides which kinds may stand in a body or in a
//   graph with memory nodes.
// Thread safety: one thread at a time uses a graph, as CUDA demands.
// Lifetime: a value, which does not keep its graph, but for bodies.
// Capture: capture-safe.
// Errors: usage_error if the graph, body or node was destroyed, the graph was moved from or
//   detached, this is empty, and for what cannot be meant; cuda_error, std::bad_alloc. The graph
//   and what it keeps are then as before; a kind that was passed ends.
// Example: examples/conditional.cpp.
class ESCROW_API graph_builder_ref {
 public:
  // A place in no graph.
  graph_builder_ref() noexcept = default;
  // A copy is the same place.
  graph_builder_ref(graph_builder_ref const&) noexcept;
  graph_builder_ref(graph_builder_ref&&) noexcept;
  graph_builder_ref& operator=(graph_builder_ref const&) noexcept;
  graph_builder_ref& operator=(graph_builder_ref&&) noexcept;
  ~graph_builder_ref();
  // The place at the graph's beginning; build(graph) is the same.
  // NOLINTNEXTLINE(google-explicit-constructor): a graph is a place.
  graph_builder_ref(graph const& into) noexcept;

  // Adds a node of this kind (node_kinds.hpp) after this place. Source: cudaGraphAddNode.
  template <detail::changeable_kind Kind>
  node add(Kind kind, source_location where = source_location::current()) const;
  allocation add(alloc_kind const& kind, source_location where = source_location::current()) const;
  node add(child_kind const& kind, source_location where = source_location::current()) const;
  conditional_node add(conditional_kind const& kind,
                       source_location where = source_location::current()) const;

  // Internal: what is no kind.
  template <class Other, class Node = node>
  Node add(Other const&, source_location = source_location::current()) const
      requires(!detail::changeable_kind<Other>) {
    static_assert(detail::changeable_kind<Other>,
                  "add() takes a kind of node, such as kernel_node(...); a graph becomes a part by "
                  "child_node(graph)");
    return static_cast<Node const&>(*this);
  }

  // A node that does nothing, after this place and after all of `others`.
  [[nodiscard]] node join(source_location where = source_location::current()) const;
  [[nodiscard]] node join(std::vector<node> const& others,
                          source_location where = source_location::current()) const;

  // A condition for a node that is added to this graph, or body. Each launch begins with
  // `initial`. Source: cudaGraphConditionalHandleCreate.
  [[nodiscard]] condition make_condition(unsigned initial,
                                         source_location where = source_location::current()) const;

  // The node of the graph, or body, that has this handle: of what was captured, or of
  // graph::add_child(). That it is a node of it is not checked.
  [[nodiscard]] node node_of(cudaGraphNode_t handle) const noexcept;

 protected:
  graph_builder_ref(std::shared_ptr<graph_core> const& core, cudaGraph_t in,
                    std::uint64_t body) noexcept
      : core_(core), in_(in), body_(body), is_empty_(false) {}

  // The core, if the graph is there, and this place; else throws usage_error.
  [[nodiscard]] graph_core& require(char const* call) const;
  // Throws usage_error unless this argument of `call` is a node of the same graph, or body.
  void require_beside(char const* call, std::string const& argument, node const& other) const;

  std::weak_ptr<graph_core> core_;
  cudaGraph_t in_ = nullptr;         // the graph, or the body
  std::uint64_t body_ = 0;           // its number; 0: the graph
  cudaGraphNode_t after_ = nullptr;  // null: nothing
  std::uint64_t made_at_ = 0;        // how many nodes of the graph had been destroyed then
  bool is_empty_ = true;             // of no graph

 private:
  [[nodiscard]] node node_of(cudaGraphNode_t handle, graph_core const& core) const noexcept;
  // Adds a node with these parameters, which are CUDA's afterwards.
  node add_node(graph_core& core, detail::node_draft& draft) const;
};

// The place at the graph's beginning.
[[nodiscard]] inline graph_builder_ref build(graph const& into) noexcept {
  return into;
}

// Changes one node of `exec`, from the next launch on. `changed` is a node of the graph, or of a
// body of it, that the exec was created from as a `graph`; the graph itself does not change. What
// `kind` owns is kept by the exec until the next set() of that node, update(), or the end of the
// exec, and released after the launches in flight then. What the exec keeps of its graph stays
// until update() or the end of the exec, also what the node used before. Takes as long as nodes of
// the exec were given owners. On failure throws usage_error, cuda_error, std::bad_alloc, and exec
// and what it keeps are as before: also after a launch whose end is not known, see
// graph_exec::launch. Source: cudaGraphExecNodeSetParams.
template <detail::changeable_kind Kind>
void set(graph_exec& exec, node const& changed, Kind kind,
         source_location where = source_location::current());
// The same of a child node: it runs a copy of another graph, of the same nodes and edges, which the
// exec then keeps what it holds of. Throws usage_error if that graph uses a sharing group, and if
// it or the exec has kernels in clusters, which CUDA may keep as they are. Source:
// cudaGraphExecNodeSetParams.
ESCROW_API void set(graph_exec& exec, node const& changed, child_kind const& kind,
                    source_location where = source_location::current());

// The same of a kind that was read; if it has launch attributes, the node has the same ones.
ESCROW_API void set(graph_exec& exec, node const& changed, any_kind const& kind,
                    source_location where = source_location::current());

// Internal: what cannot be changed, or is no kind.
template <class Other>
requires(!detail::changeable_kind<Other>) void set(graph_exec&, node const&, Other const&,
                                                   source_location = source_location::current()) {
  static_assert(detail::changeable_kind<Other>,
                "an exec changes no such node: destroy it, add another, and make another exec");
}

// Whether that kernel, memset or memcpy runs in later launches of `exec`: one that does not acts as
// an empty node, and its owners stay. set() and update() leave it so. Throws as set(). Source:
// cudaGraphNodeSetEnabled.
ESCROW_API void set_enabled(graph_exec& exec, node const& changed, bool is_enabled,
                            source_location where = source_location::current());
// The same, asked. Source: cudaGraphNodeGetEnabled.
[[nodiscard]] ESCROW_API bool is_enabled(graph_exec const& exec, node const& asked,
                                         source_location where = source_location::current());

// What: a node, which is also the place after it: `build(graph).add(...).add(...)` is a chain. Its
//   parameters can be changed, with what they keep alive, and are read with CUDA's calls on get().
//   Changes concern the graph and what is created from it from then on, not clones and execs that
//   are there: see set() below.
// Thread safety, Capture: as graph_builder_ref.
// Lifetime: a value, which knows its graph and does not keep it. Once the node was destroyed, this
//   and its copies are refused.
// Errors: as graph_builder_ref; cuda_error: cudaErrorInvalidValue for parameters of another kind.
class ESCROW_API node : public graph_builder_ref {
 public:
  // No node.
  node() noexcept = default;

  // The CUDA handle. Never owning.
  [[nodiscard]] cudaGraphNode_t get() const noexcept { return after_; }
  friend bool operator==(node const& one, node const& other) noexcept {
    return one.after_ == other.after_;
  }

  // What it is and keeps now, as a kind that add() takes, of this graph or another: what add() and
  // set() gave this node, or a clone's. Throws usage_error for a child graph, an empty,
  // conditional, alloc or free node, and if the graph keeps what is of no such node: of captured
  // launches and claims, of child graphs, of before detach(). What plain CUDA calls gave it has no
  // owner, nor has what a hoisted graph kept: read before hoist().
  [[nodiscard]] any_kind kind(source_location where = source_location::current()) const;

  // The nodes that this one waits for, also if only for their beginning. Source:
  // cudaGraphNodeGetDependencies.
  [[nodiscard]] std::vector<node> predecessors(
      source_location where = source_location::current()) const;
  // Those that wait for it. Source: cudaGraphNodeGetDependentNodes.
  [[nodiscard]] std::vector<node> successors(
      source_location where = source_location::current()) const;

  // Makes this node wait for `other`, too. Throws cuda_error if it does already, also if only for
  // its beginning (programmatic dependent launch). Source: cudaGraphAddDependencies.
  node const& after(node const& other, source_location where = source_location::current()) const;

  // Gives the node the parameters of `kind`, which must be the kind that it is. The graph then
  // keeps what these own; what was kept is released when the graph is next used. On failure the
  // node and what it keeps are as before. Source: cudaGraphNodeSetParams.
  template <detail::changeable_kind Kind>
  void set(Kind kind, source_location where = source_location::current()) const {
    detail::called_at("node::set", where, [&] {
      detail::node_draft made = kind.draft("node::set", require("node::set"));
      set_params(made);
    });
  }

  // Internal: what cannot be changed, or is no kind.
  template <class Other>
  void set(Other const&, source_location = source_location::current()) const
      requires(!detail::changeable_kind<Other>) {
    static_assert(
        detail::changeable_kind<Other>,
        "set() takes a kind, such as kernel_node(...); CUDA changes no other node: destroy "
        "it, and add another");
  }

  // The same of a kind that was read: all launch attributes are then as they were.
  void set(any_kind const& kind, source_location where = source_location::current()) const;

  // The same of a child node: it runs a copy of another graph, as child_node() says, also of a call
  // that fails when the copy is there. Nodes of the copy before must not be used any more.
  void set(child_kind const& kind, source_location where = source_location::current()) const;

  // Takes the node out of its graph, with its edges and its bodies, and releases what is kept for
  // it unless an exec, a clone or a launch keeps it: if a call for that fails, when the graph is
  // next used. CUDA instantiates no graph with a condition that no node has: give those of a
  // conditional node, and of its bodies, to other nodes then. Source: cudaGraphDestroyNode.
  void destroy(source_location where = source_location::current()) const;

 private:
  friend class graph_builder_ref;
  template <detail::changeable_kind Kind>
  friend void set(graph_exec& exec, node const& changed, Kind kind, source_location where);
  friend void set(graph_exec& exec, node const& changed, child_kind const& kind,
                  source_location where);
  friend void set(graph_exec& exec, node const& changed, any_kind const& kind,
                  source_location where);
  friend void set_enabled(graph_exec& exec, node const& changed, bool is_enabled,
                          source_location where);
  friend bool is_enabled(graph_exec const& exec, node const& asked, source_location where);

  explicit node(graph_builder_ref&& place) noexcept : graph_builder_ref(std::move(place)) {}

  void set_params(detail::node_draft& draft) const;
  void set_params_in(graph_exec& exec, detail::node_draft& draft) const;
  // For set() in an exec: the graph that the exec was created from, if the node is of it; else
  // throws usage_error.
  [[nodiscard]] graph_core& core_in(char const* call, graph_exec const& exec) const;
};

// What: a node that allocates, and the address that the memory has at each launch, from this node
//   to the one that frees it.
class allocation : public node {
 public:
  [[nodiscard]] void* address() const noexcept { return address_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

 private:
  friend class graph_builder_ref;

  allocation(node const& made, void* address, std::size_t bytes) noexcept
      : node(made), address_(address), bytes_(bytes) {}

  void* address_;
  std::size_t bytes_;
};

// What: the body of a conditional node, to which nodes are added as to a graph.
// Lifetime: a share of the graph that the body belongs to, which it keeps; see conditional_node.
class ESCROW_API body_graph : public graph_builder_ref {
 public:
  // A copy is the same body.
  body_graph(body_graph const&) noexcept;
  body_graph(body_graph&&) noexcept;
  body_graph& operator=(body_graph const&) noexcept;
  body_graph& operator=(body_graph&&) noexcept;
  ~body_graph();

  // The CUDA handle, e.g. to capture into. Never owning. Throws as graph::get().
  [[nodiscard]] cudaGraph_t get(source_location where = source_location::current()) const;

 private:
  friend class graph_builder_ref;
  friend class conditional_node;

  body_graph(std::shared_ptr<graph_core> const& core, cudaGraph_t body,
             std::uint64_t number) noexcept
      : graph_builder_ref(core, body, number) {}
  [[nodiscard]] body_graph kept() const noexcept;  // the same, which keeps the graph

  std::shared_ptr<graph_core> kept_ = nullptr;
};

// What: an if, if-else, while or switch node with its bodies, which are empty at first.
// Lifetime: as a node, it does not keep its graph. What body() and otherwise() return does.
// Example: examples/conditional.cpp.
class conditional_node : public node {
 public:
  // Of an if or while node, or the first of another.
  [[nodiscard]] body_graph body() const noexcept { return bodies_.front().kept(); }
  // The second body, e.g. of an if-else node.
  [[nodiscard]] body_graph otherwise(source_location where = source_location::current()) const {
    return detail::called_at("conditional_node::otherwise", where, [&]() -> body_graph {
      if (bodies_.size() > 1) return bodies_[1].kept();
      throw usage_error("conditional_node::otherwise", "the node has one body",
                        "make it by if_else_node");
    });
  }
  // All bodies. These do not keep the graph.
  [[nodiscard]] std::vector<body_graph> const& bodies() const noexcept { return bodies_; }

 private:
  friend class graph_builder_ref;

  conditional_node(node const& made, std::vector<body_graph> bodies) noexcept
      : node(made), bodies_(std::move(bodies)) {}

  std::vector<body_graph> bodies_;
};

template <detail::changeable_kind Kind>
node graph_builder_ref::add(Kind kind, source_location where) const {
  constexpr char const* call = "graph_builder_ref::add";
  return detail::called_at(call, where, [&] {
    graph_core& core = require(call);
    detail::node_draft made = kind.draft(call, core);
    return add_node(core, made);
  });
}

template <detail::changeable_kind Kind>
void set(graph_exec& exec, node const& changed, Kind kind, source_location where) {
  detail::called_at("set", where, [&] {
    detail::node_draft made = kind.draft("set", changed.core_in("set", exec));
    changed.set_params_in(exec, made);
  });
}

}  // namespace escrow::inline v0_2
