// The kinds of nodes, as values: what CUDA is told of a node, with what the node keeps alive.
#pragma once

#include <cuda_runtime_api.h>

#include <concepts>
#include <cstddef>
#include <utility>

#include "escrow/detail/node_kind.hpp"
#include "escrow/nodes/launch.hpp"
#include "escrow/version.hpp"

namespace escrow::inline v0_1 {

class graph;

// What a memset writes: `height` rows of `width` elements.
struct memset_config {
  unsigned value = 0;          // of an element; has to fit in one
  unsigned element_bytes = 1;  // 1, 2 or 4
  std::size_t width = 0;       // of a row, in elements
  std::size_t height = 1;      // in rows
  std::size_t pitch = 0;       // from row to row, in bytes; not used with one row
};

namespace detail {
// CUDA's parameters. They throw usage_error, in the name of the kind, for what cannot be meant.
[[nodiscard]] ESCROW_API cudaGraphNodeParams memset_params(void* destination,
                                                           memset_config const& config,
                                                           source_location where);
[[nodiscard]] ESCROW_API cudaGraphNodeParams memcpy_params(void* to, void const* from,
                                                           std::size_t bytes,
                                                           source_location where);
[[nodiscard]] ESCROW_API cudaGraphNodeParams host_params(cudaHostFn_t function);
}  // namespace detail

// The kinds. Each is a value, made by a function of its name for graph_builder_ref::add(),
// node::set() and set(). One with an argument that can only be moved refers to that argument until
// then, and is used once. What an argument owns (kernel_argument_traits) is kept by the node; of a
// lease the node keeps a share: the slot is not handed out before that is destroyed, too. They
// throw usage_error for what cannot be meant, and what taking a share throws. Any thread.

// A kernel; arguments as of escrow::launch(). Attributes and deleter of `config` must be empty: the
// graph has a deleter.
// Example: examples/conditional.cpp.
template <class... Arguments>
[[nodiscard]] auto kernel_node(kernel const& launched, launch_config const& config,
                               Arguments&&... arguments) {
  return detail::kernel_kind<Arguments...>(launched, config, detail::values_of(arguments...),
                                           arguments...);
}
template <class... Parameters, class... Arguments>
[[nodiscard]] auto kernel_node(void (*launched)(Parameters...), launch_config const& config,
                               Arguments&&... arguments) {
  return detail::kernel_kind<Arguments...>(
      launched, config, detail::values_for<Parameters...>(arguments...), arguments...);
}

// Writes a value of 1, 2 or 4 bytes, also in rows. `destination`: device memory, or an owner.
template <class Destination>
[[nodiscard]] auto memset_node(Destination&& destination, memset_config const& config,
                               source_location where = source_location::current()) {
  using bound = detail::node_arguments<Destination>;
  return detail::owning_kind<bound>(
      detail::memset_params(detail::device_value_of(destination), config, where),
      bound(destination));
}

// Copies `bytes` bytes between any two of device, pinned and pageable memory, or owners of such;
// CUDA infers the kind. A launch of a graph that copies to pageable memory blocks the host until
// that copy is done (measured: cudaGraphLaunch).
template <class To, class From>
[[nodiscard]] auto memcpy_node(To&& to, From&& from, std::size_t bytes,
                               source_location where = source_location::current()) {
  using bound = detail::node_arguments<To, From>;
  return detail::owning_kind<bound>(
      detail::memcpy_params(detail::device_value_of(to), detail::device_value_of(from), bytes,
                            where),
      bound(to, from));
}

// Calls `function()` on a thread of CUDA's. It must neither throw nor call CUDA.
template <std::invocable Function>
[[nodiscard]] auto host_node(Function function) {
  using callable = detail::host_callable<Function>;
  return detail::owning_kind<callable>(detail::host_params(&callable::call),
                                       callable{std::move(function)});
}

// Records an event: a std::shared_ptr<event const>, which is kept, or an event_ref, which has to
// stay.
template <class Event>
[[nodiscard]] auto record_node(Event const& event,
                               source_location where = source_location::current()) {
  return detail::event_kind(cudaGraphNodeTypeEventRecord, event, where);
}
// Waits for an event, given as to record_node().
template <class Event>
[[nodiscard]] auto wait_node(Event const& event,
                             source_location where = source_location::current()) {
  return detail::event_kind(cudaGraphNodeTypeWaitEvent, event, where);
}

// Frees memory that a node allocates, of this graph or of another. CUDA does not change such nodes.
[[nodiscard]] ESCROW_API detail::owning_kind<detail::no_share> free_node(
    void* address, source_location where = source_location::current());

// The kinds that follow cannot be changed once they are in a graph.

// What alloc_node() returns.
struct alloc_kind {
  cudaGraphNodeParams params{};
};
// What child_node() returns: a reference to the graph that add() copies.
struct child_kind {
  graph const& child;
};

// Memory of the device that is current now, which is there from this node to the one that frees it;
// `bytes` is not 0. Throws cuda_error, too.
[[nodiscard]] ESCROW_API alloc_kind alloc_node(std::size_t bytes,
                                               source_location where = source_location::current());

// A copy of `child`, which has to be there until the node is added. The copy holds what `child`
// holds. Of two copies of one graph in another, and of one and a clone, the caller orders the use
// of what they share, e.g. of a slot. From a graph with memory nodes CUDA cannot remove a node. If
// memory runs out or a call fails when the node is there already, adding it then succeeds all the
// same, and launches of execs pay for what it holds (graph_exec::is_bare).
[[nodiscard]] inline child_kind child_node(graph const& child) noexcept {
  return {child};
}

// A condition for one conditional node of one graph or body (graph_builder_ref::make_condition).
// Kernels of the graph set it (cudaGraphSetConditional); get() is what they take. It does not keep
// the graph.
class condition {
 public:
  [[nodiscard]] cudaGraphConditionalHandle get() const noexcept { return handle_; }

 private:
  friend class graph_builder_ref;

  condition(cudaGraphConditionalHandle handle, cudaGraph_t in) noexcept
      : handle_(handle), in_(in) {}

  cudaGraphConditionalHandle handle_;
  cudaGraph_t in_;  // the graph, or the body
};

// A node with bodies, of the kinds that follow.
struct conditional_kind {
  char const* name;
  condition tested;
  cudaGraphConditionalNodeType type;
  unsigned bodies;
};

// Runs its body if the condition is not 0.
[[nodiscard]] inline conditional_kind if_node(condition const& tested) noexcept {
  return {"if_node", tested, cudaGraphCondTypeIf, 1};
}
// Runs its first body if the condition is not 0, else its second.
[[nodiscard]] inline conditional_kind if_else_node(condition const& tested) noexcept {
  return {"if_else_node", tested, cudaGraphCondTypeIf, 2};
}
// Runs its body again and again, while the condition is not 0.
[[nodiscard]] inline conditional_kind while_node(condition const& tested) noexcept {
  return {"while_node", tested, cudaGraphCondTypeWhile, 1};
}
// Runs the body of that number; none if there are not as many. `bodies` is not 0.
[[nodiscard]] ESCROW_API conditional_kind switch_node(
    condition const& tested, unsigned bodies, source_location where = source_location::current());

}  // namespace escrow::inline v0_1
