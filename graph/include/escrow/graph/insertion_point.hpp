// Where nodes are added to a graph by hand: at its beginning, in a body, or after a node.
#pragma once

#include <cuda_runtime_api.h>

#include <concepts>
#include <cstddef>
#include <initializer_list>
#include <memory>
#include <utility>
#include <vector>

#include "escrow/graph/condition.hpp"
#include "escrow/graph/node_params.hpp"

namespace escrow {

class allocation;
class body_graph;
class conditional_node;
class graph;
class node;

// What: a place in a graph. Each function adds a node there: a graph and a body add one that waits
//   for nothing, a node adds one that waits for it; join() makes one that waits for several. What
//   an argument owns (kernel_argument_traits) is kept by the graph, its clones, execs and their
//   launches, until the node is changed or destroyed; execs and clones that were made before keep
//   it as they are. CUDA decides which kinds may stand in a body or beside memory nodes.
// Thread safety: one thread at a time uses a graph, as CUDA demands.
// Memory ordering: none.
// Lifetime: a value, which does not keep its graph, but for bodies.
// Capture: capture-safe.
// Errors: usage_error if the graph is gone, and for what cannot be meant; cuda_error,
//   std::bad_alloc. The graph and what it keeps are then as before, and nothing was moved from but
//   what is taken by value.
class insertion_point {
 public:
  // A place in no graph.
  insertion_point() noexcept = default;

  // A node that does nothing, after this place and after all of `others`. Source:
  // cudaGraphAddNode, as for all that follow.
  [[nodiscard]] node join(std::initializer_list<node> others = {}) const;
  [[nodiscard]] node join(std::vector<node> const& others) const;

  // A kernel; arguments as of escrow::launch(). Of a lease the node keeps a share: the slot is
  // handed out to nobody until that is gone, too. Attributes and keeper of `config` must be empty:
  // the graph has a keeper.
  template <class... Arguments>
  node launch(kernel const& launched, launch_config const& config, Arguments&&... arguments) const;
  template <class... Parameters, class... Arguments>
  node launch(void (*launched)(Parameters...), launch_config const& config,
              Arguments&&... arguments) const;

  // Memory of the current device that is there from this node to the one that frees it; `bytes` is
  // not 0.
  [[nodiscard]] allocation alloc(std::size_t bytes) const;
  node free(void* address) const;
  node free(allocation const& allocated) const;

  // Writes a value of 1, 2 or 4 bytes, also in rows. `destination`: device memory, or an owner.
  template <class Destination>
  node memset(Destination&& destination, memset_config const& config) const;
  // Copies `bytes` bytes between any two of device, pinned and pageable memory, or owners of such;
  // CUDA infers the kind. A launch of a graph that copies to pageable memory blocks the host until
  // that copy is done (measured: cudaGraphLaunch).
  template <class To, class From>
  node memcpy(To&& to, From&& from, std::size_t bytes) const;

  // A copy of `child`, which holds what `child` holds. Of two copies of one graph in another, and
  // of one beside a clone, the caller orders the use of what they share, e.g. of a slot. If memory
  // runs out or a call fails when the node is there already, and CUDA cannot take it off again, as
  // beside memory nodes, then embed() succeeds all the same, and execs are not bare
  // (graph_exec::is_bare).
  node embed(graph const& child) const;

  // Calls `function()` on a thread of CUDA's. It must neither throw nor call CUDA.
  template <std::invocable Function>
  node call(Function function) const;
  // Calls `function` with a copy of `bytes` bytes at `data`, aligned for any type.
  node call(cudaHostFn_t function, void const* data, std::size_t bytes) const;

  // Records an event, or waits for one. A shared_event is kept, another has to stay.
  node record(shared_event event) const;
  node record(event_ref event) const;
  node wait(shared_event event) const;
  node wait(event_ref event) const;

  // A condition for a node that is added to this graph, or body. Each launch begins with
  // `initial`. Source: cudaGraphConditionalHandleCreate.
  [[nodiscard]] condition make_condition(unsigned initial) const;
  // Runs its body if the condition is not 0.
  [[nodiscard]] conditional_node if_then(condition const& looked_at) const;
  // Runs its first body if the condition is not 0, else its second.
  [[nodiscard]] conditional_node if_else(condition const& looked_at) const;
  // Runs its body again and again, while the condition is not 0.
  [[nodiscard]] conditional_node while_loop(condition const& looked_at) const;
  // Runs the body of that number; none if there are not as many.
  [[nodiscard]] conditional_node switch_to(condition const& looked_at, unsigned bodies) const;

 protected:
  insertion_point(std::shared_ptr<graph_core> const& core, cudaGraph_t in) noexcept
      : core_(core), graph_(core.get()), in_(in) {}
  // After a node of the place's graph.
  insertion_point(insertion_point const& place, cudaGraphNode_t after) noexcept
      : core_(place.core_), graph_(place.graph_), in_(place.in_), after_(after) {}

  // The core, if the graph is there; else throws usage_error.
  [[nodiscard]] graph_core& require(char const* call) const;
  // The deleter that destroys what nodes of the graph keep.
  [[nodiscard]] static deleter_core& keeper_of(graph_core& core);
  [[nodiscard]] node node_of(cudaGraphNode_t made) const noexcept;
  [[nodiscard]] std::vector<node> nodes_of(std::vector<cudaGraphNode_t> const& found) const;

  std::weak_ptr<graph_core> core_;
  graph_core* graph_ = nullptr;      // what core_ has, if it is there
  cudaGraph_t in_ = nullptr;         // the graph, or the body
  cudaGraphNode_t after_ = nullptr;  // null: nothing

 private:
  friend class graph_exec;

  // Adds a node with these parameters, which are CUDA's afterwards.
  node add(graph_core& core, cudaGraphNodeParams& params, detail::node_payload payload) const;
  template <class Apply>
  node adding(char const* call, Apply apply) const;
  [[nodiscard]] conditional_node add_conditional(char const* call, condition const& looked_at,
                                                 cudaGraphConditionalNodeType type,
                                                 unsigned bodies) const;
};

}  // namespace escrow
