// SPDX-License-Identifier: Apache-2.0
// The kinds of nodes, as values: what CUDA is told of a node, with what the node keeps alive.
#pragma once

#include <cuda_runtime_api.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "escrow/detail/node_kind.hpp"
#include "escrow/nodes/launch.hpp"
#include "escrow/version.hpp"

namespace escrow::inline v0_2 {

class graph;
class graph_core;

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
[[nodiscard]] ESCROW_API cudaGraphNodeParams memset_params(writable_span destination,
                                                           memset_config const& config);
[[nodiscard]] ESCROW_API cudaGraphNodeParams memcpy_params(writable_span to, readable_span from,
                                                           std::size_t bytes);
[[nodiscard]] ESCROW_API cudaGraphNodeParams host_params(cudaHostFn_t function);
// Throws usage_error, in the name of host_node, if `is_null`.
ESCROW_API void require_callable(bool is_null, source_location where);

// Whether a callable can be null, as a pointer or a std::function, and is. A lambda without
// captures converts to a pointer, but is none.
template <class Function>
bool is_null_function(Function const& function) {
  if constexpr (!std::is_empty_v<Function> && requires {
                  { function == nullptr } -> std::convertible_to<bool>;
                }) {
    return function == nullptr;
  } else {
    return false;
  }
}
}  // namespace detail

// The kinds. Each is a value, made by a function of its name for graph_builder_ref::add(),
// node::set() and set(). What an argument owns (kernel_argument_traits) is kept by the kind, and
// then by the node; of a lease they keep a share: the slot is not handed out before that is
// destroyed, too. An argument that can only be moved is moved into the kind, which then can only be
// moved itself, and ends with what it owns if adding it fails. A kind that was moved, as into
// add(), is not used again, unless it keeps nothing: that is a usage_error. They throw usage_error
// for what cannot be meant, and what taking a share throws, and nothing was moved then. Any thread.

// A kernel; arguments as of escrow::launch(). The deleter of `config` must be empty: the graph has
// one. Its attributes are set in the graph, where CUDA takes them for a node (clusters,
// cooperative, priority and the like); others of a node that is changed stay. In an exec they do
// not change: set() refuses them. A node of such a kind is added in more calls; if the last of them
// fails again and again, beside memory nodes, the node stays.
// Source: cudaGraphKernelNodeSetAttribute.
// Example: examples/conditional.cpp.
// A class, and no function as the other kinds, so that the caller's line may follow the arguments.
template <class Launched, class... Arguments>
class [[nodiscard]] kernel_node : public detail::kernel_kind_of<Launched, Arguments...> {
 public:
  // Throws usage_error for a null kernel, an empty lease, and a deleter in `config`.
  kernel_node(kernel const& launched, launch_config const& config, Arguments&&... arguments,
              source_location where = source_location::current())
      : detail::kernel_kind_of<Launched, Arguments...>(
            detail::kernel_kind<Launched, Arguments...>(launched, config, where, arguments...)) {}
};
// Of a kernel: its arguments are passed as they are.
template <class... Arguments>
kernel_node(kernel const&, launch_config const&, Arguments&&...)
    -> kernel_node<kernel, Arguments...>;
// Of a __global__ function: its arguments are converted to the types of its parameters.
template <class... Parameters, class... Arguments>
kernel_node(void (*)(Parameters...), launch_config const&, Arguments&&...)
    -> kernel_node<void(Parameters...), Arguments...>;

// Writes a value of 1, 2 or 4 bytes, also in rows. `destination`: device memory: a pointer, an
// array or an owner.
template <class Destination>
[[nodiscard]] auto memset_node(Destination&& destination, memset_config const& config,
                               source_location where = source_location::current()) {
  constexpr char const* call = "memset_node";
  return detail::called_at(call, where, [&] {
    auto const params =
        detail::memset_params(detail::span_of<detail::writable_span>(call, 0, destination), config);
    return detail::taking_kind(params, detail::node_arguments<Destination>(destination));
  });
}

// Copies `bytes` bytes between any two of device, pinned and pageable memory: pointers, arrays or
// owners; CUDA infers the cudaMemcpyKind, but a captured node that is set keeps its own. A launch
// of a graph that copies to pageable memory blocks the host until that copy is done (measured:
// cudaGraphLaunch).
template <class To, class From>
[[nodiscard]] auto memcpy_node(To&& to, From&& from, std::size_t bytes,
                               source_location where = source_location::current()) {
  constexpr char const* call = "memcpy_node";
  return detail::called_at(call, where, [&] {
    auto const params =
        detail::memcpy_params(detail::span_of<detail::writable_span>(call, 0, to),
                              detail::span_of<detail::readable_span>(call, 1, from), bytes);
    return detail::taking_kind(params, detail::node_arguments<To, From>(to, from));
  });
}

// Calls `function()`, which is not null, on a thread of CUDA's. It must neither throw nor call
// CUDA.
template <std::invocable Function>
[[nodiscard]] auto host_node(Function function,
                             source_location where = source_location::current()) {
  detail::require_callable(detail::is_null_function(function), where);
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

// The kinds that follow cannot be changed once they are in a graph, but for child_node().

// Where the memory of an alloc_node is, and which devices reach it.
struct alloc_config {
  int device = -1;              // negative: the one that is current where the kind is made
  std::vector<int> peers = {};  // other devices, which read and write it, too
};
// What alloc_node() returns.
struct alloc_kind {
  cudaGraphNodeParams params{};
  std::vector<cudaMemAccessDesc> access;
};
// What child_node() returns: a share of the graph that add() copies.
struct child_kind {
  std::shared_ptr<graph_core> child;
};

// Memory of a device, which is there from this node to the one that frees it; `bytes` is not 0.
// Graphs have no other: CUDA 13.0 refuses host memory, and gives device memory for managed
// (measured). Throws cuda_error, too.
[[nodiscard]] ESCROW_API alloc_kind alloc_node(std::size_t bytes, alloc_config const& config = {},
                                               source_location where = source_location::current());

// A copy of `child` as it is when the node is added; the kind keeps it until then. The copy holds
// what `child` holds. Two copies of one graph use the same claims, and owners moved into a capture:
// an exec of a graph in which they may run concurrently is refused. From a graph with memory nodes
// CUDA cannot remove a node. If memory runs out or a call fails when the node is there already,
// adding it then succeeds all the same, and launches of execs pay for what it holds
// (graph_exec::is_bare).
[[nodiscard]] ESCROW_API child_kind child_node(graph const& child) noexcept;

// A condition for one conditional node of one graph or body (graph_builder_ref::make_condition);
// once that body was destroyed with its node, for one where that node was: in its body, or anywhere
// in the graph if it was in none. Kernels of the graph set it (cudaGraphSetConditional); get() is
// what they take. It does not keep the graph.
class condition {
 public:
  [[nodiscard]] cudaGraphConditionalHandle get() const noexcept { return handle_; }

 private:
  friend class graph_builder_ref;

  condition(cudaGraphConditionalHandle handle, std::weak_ptr<graph_core> of,
            std::uint64_t body) noexcept
      : handle_(handle), of_(std::move(of)), body_(body) {}

  cudaGraphConditionalHandle handle_;
  std::weak_ptr<graph_core> of_;
  std::uint64_t body_;  // its number; 0: the graph
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

}  // namespace escrow::inline v0_2
