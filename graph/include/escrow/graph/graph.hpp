// SPDX-License-Identifier: Apache-2.0
// An owned CUDA graph, and stream capture into one.
#pragma once

#include <cuda_runtime_api.h>

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <span>
#include <utility>

#include "escrow/core/capture.hpp"
#include "escrow/core/stream.hpp"
#include "escrow/deleter/deleter.hpp"
#include "escrow/detail/enqueue.hpp"
#include "escrow/version.hpp"

namespace escrow::inline v0_2 {

class deleter;
class graph_core;

namespace detail {
// The core, if it has a graph; else throws usage_error naming `call`.
graph_core& require_graph(char const* call, graph_core* core);
}  // namespace detail

// What: owns a cudaGraph_t and its references to leases, retired owners, and the resources of nodes
//   that are added by hand (escrow/nodes.hpp).
// Thread safety: a value; CUDA lets one thread at a time use a graph. Other threads may use and
//   destroy its clones, parents and execs concurrently; plain calls that create or destroy one of
//   them, or this graph, then need a graph_lifetime_lock.
// Lifetime: destroys the graph. What it held is released after its clones and execs are destroyed,
//   too, and their launches done. Bodies of its conditional nodes keep it alive.
// Capture: all functions are capture-safe; calls that CUDA forbids in a capture run in Relaxed
//   mode.
// Errors: cuda_error, usage_error. The destructor ignores the status. What changed and destroyed
//   nodes had is taken off the graph when the handle is requested or the graph is instantiated or
//   copied: this may fail.
// Example: examples/conditional.cpp.
class ESCROW_API graph {
 public:
  // A new, empty graph, whose node resources the process-wide deleter or `its` destroys. Throws
  // cuda_error, std::bad_alloc. Source: cudaGraphCreate.
  // NOLINTNEXTLINE(google-explicit-constructor): as a default constructor, also for `= {}`.
  graph(source_location where = source_location::current());
  explicit graph(deleter& its, source_location where = source_location::current());
  // Takes over a graph created by plain calls; see also end_capture(). `id` is its capture id, if
  // known. Throws usage_error for null, and if the id is needed and cannot be learned, cuda_error,
  // std::bad_alloc; the graph is then destroyed.
  explicit graph(cudaGraph_t native, std::uint64_t id = 0,
                 source_location where = source_location::current());
  graph(graph const&) = delete;  // std::move it, or clone() it
  graph(graph&& other) noexcept;
  graph& operator=(graph&& other) noexcept;
  ~graph();

  // The CUDA handle, not owning; null if moved from or detached. Throws cuda_error, std::bad_alloc.
  [[nodiscard]] cudaGraph_t get(source_location where = source_location::current()) const
      ESCROW_OF_THIS;
  // The capture id, never reused; 0 if not known.
  [[nodiscard]] std::uint64_t id() const noexcept;
  // Transfers the handle to the caller, who destroys it (graph_lifetime_lock). Throws as get(), and
  // nothing has changed then.
  [[nodiscard]] cudaGraph_t detach(source_location where = source_location::current());

  // A copy, which holds what this one holds. What was hoisted off this one, the `hoisted` keeps for
  // both. Source: cudaGraphClone.
  ESCROW_KEEP graph clone(source_location where = source_location::current()) const;
  // Adds a node that runs a copy of `child`, which holds what `child` holds, after the end of all
  // present nodes. Returns the node, which belongs to this graph. Throws usage_error if the child
  // uses the slot of a sharing group that a living lease of this graph covers. Otherwise as
  // child_node. Source: cudaGraphAddChildGraphNode.
  cudaGraphNode_t add_child(graph const& child, source_location where = source_location::current());

  // Writes the graph as Graphviz DOT. `flags`: cudaGraphDebugDotFlags, or'ed. Throws cuda_error:
  // cudaErrorOperatingSystem if the file cannot be written. Source: cudaGraphDebugDotPrint.
  void write_dot(std::filesystem::path const& file, unsigned flags = 0,
                 source_location where = source_location::current()) const;

  // What the graph and its child graphs keep alive, except references of plain cudaGraphClone
  // copies, which Escrow does not know. Throws cuda_error, std::bad_alloc.
  [[nodiscard]] resource_usage held(source_location where = source_location::current()) const;

  // Internal: for building by hand (escrow/nodes.hpp): state of nodes and bodies; null if moved
  // from.
  [[nodiscard]] std::shared_ptr<graph_core> const& core() const noexcept { return shared_; }
  // Internal: the same: a node of `in` with a copy of `child`. Throws as add_child().
  [[nodiscard]] static cudaGraphNode_t embed(char const* call, graph_core* child, cudaGraph_t in,
                                             std::span<cudaGraphNode_t const> after);
  // Internal: the same: gives a child node of `in`, the graph of `core` or a body of it, a copy of
  // another graph.
  static void embed_anew(char const* call, graph_core* child, graph_core& core, cudaGraph_t in,
                         cudaGraphNode_t node);

 private:
  friend class capture_scope;
  explicit graph(std::shared_ptr<graph_core> core) noexcept;

  std::shared_ptr<graph_core> shared_;  // null if moved from
};

// What: a borrowed graph, implicitly converted from a `graph`, or from a cudaGraph_t and what
//   converts to one. Of a `graph` the resources of its nodes and the bodies of its conditional
//   nodes are known.
// Lifetime: the graph must be there during each call that takes one.
class ESCROW_API graph_ref {
 public:
  template <std::convertible_to<cudaGraph_t> Graph>
  // NOLINTNEXTLINE(google-explicit-constructor): converts implicitly by design.
  graph_ref(Graph const& native) noexcept : native_(native) {}
  // Of a graph that was moved from, it is null.
  // NOLINTNEXTLINE(google-explicit-constructor): converts implicitly by design.
  graph_ref(graph const& of) noexcept;

  // Null if it was moved from or detached.
  [[nodiscard]] cudaGraph_t get() const noexcept { return native_; }
  // Internal: null if it is a handle, or was moved from.
  [[nodiscard]] graph_core* core() const noexcept { return core_; }

 private:
  cudaGraph_t native_;
  graph_core* core_ = nullptr;
};

// Whether a call refuses a graph in which audit() finds something but what only looks like an
// address: with a usage_error, and nothing has changed.
//     by_default   as ESCROW_AUDIT says in the environment, 1 or 0. Without it: on the simulated
//                  runtime captures do, but for what is freed, where its memory may be the host's
enum class audit_use : std::uint8_t { by_default, no, yes };

// How a stream is captured.
struct capture_options {
  // Also from CUDA's mode alone.
  // NOLINTNEXTLINE(google-explicit-constructor): a mode is options.
  capture_options(cudaStreamCaptureMode its_mode = cudaStreamCaptureModeThreadLocal,
                  audit_use its_audit = audit_use::by_default) noexcept
      : mode(its_mode), audit(its_audit) {}

  cudaStreamCaptureMode mode;
  audit_use audit;  // at the end; a graph that is refused is destroyed
};

// Calls `enqueue(stream)`, or `enqueue()`, during a capture of `stream` and returns the graph. If
// `enqueue` throws, or returns a cudaError_t that is not cudaSuccess, the capture ends, its work
// and claims are dropped, and that error leaves it. A lease of a sharing group that outlives the
// capture is reported to its pool's deleter: see sharing_group. Errors: those of capture_scope.
template <class Enqueue>
ESCROW_KEEP graph capture(stream_ref stream, Enqueue&& enqueue, capture_options options = {},
                          source_location where = source_location::current());

// What: a stream capture between begin and end. Prefer capture().
// Thread safety: only the thread that created it.
// Lifetime: without end(), the destructor ends the capture and drops what was captured.
// Capture: begins one.
// Errors: cuda_error. After a failed end() its graph is destroyed and the capture over; if CUDA
//   refuses even that, end() may be called again.
class ESCROW_API capture_scope {
 public:
  // Begins to capture `stream`. Source: cudaStreamBeginCapture.
  explicit capture_scope(stream_ref stream, capture_options options = {},
                         source_location where = source_location::current());
  capture_scope(capture_scope&&) = delete;
  ~capture_scope();

  // Ends the capture, once; throws cuda_error if it was invalidated or a fork was not joined, and
  // usage_error if another call ended it, or the graph is refused: see audit_use. A capture that
  // the stream began since then goes on.
  // Source: cudaStreamEndCapture.
  [[gnu::noinline]] ESCROW_KEEP graph end(source_location where = source_location::current());

 private:
  friend graph end_capture(stream_ref stream, audit_use audit, source_location where);
  template <class Enqueue>
  friend graph capture(stream_ref stream, Enqueue&& enqueue, capture_options options,
                       source_location where);
  // In the name of `call`.
  capture_scope(char const* call, stream_ref stream, capture_options options,
                source_location where);
  // Of a capture that goes on.
  capture_scope(stream_ref stream, audit_use audit, capture_info const& begun) noexcept;
  [[nodiscard, gnu::noinline]] graph end_as(char const* call, source_location where);
  // `frame`: of the function that was called to end it. What is below that in the stack is of
  // functions that have returned; so those that call this are not inlined.
  [[nodiscard]] graph end_at(void const* frame, char const* call, source_location where);

  // Whether the stream captures nothing, or something else.
  [[nodiscard]] bool is_ended_elsewhere() const noexcept;
  bool drop() noexcept;  // whether the capture is over

  cudaStream_t stream_;
  audit_use audit_;
  capture_info captured_;  // none if CUDA did not tell
  // On the simulated runtime: how much eager work this thread had enqueued when it began.
  std::uint64_t eager_before_ = std::numeric_limits<std::uint64_t>::max();
  bool is_open_ = true;
  bool is_end_tried_ = false;  // and so it may be over without a graph
};

template <class Enqueue>
graph capture(stream_ref stream, Enqueue&& enqueue, capture_options options,
              source_location where) {
  constexpr char const* call = "capture";
  detail::require_function(call, enqueue, where);
  capture_scope scope(call, stream, options, where);
  cudaError_t const status = detail::status_on(stream, std::forward<Enqueue>(enqueue));
  if (status != cudaSuccess) [[unlikely]] {
    detail::called_at(call, where, [&] { check(status, "the function", source_location()); });
  }
  return scope.end_as(call, where);
}

// Ends a capture that another call began, such as cudaStreamBeginCapture, and returns its graph.
// Prefer it to cudaStreamEndCapture: which graph a plain handle names, CUDA before 13.1 tells at
// 0.6 to 1 us a node, in each call that instantiates, updates or hoists. Throws as
// capture_scope::end(), and usage_error if the stream is not being captured, or is captured into a
// graph that Escrow owns.
[[gnu::noinline]] ESCROW_KEEP ESCROW_API graph
end_capture(stream_ref stream, audit_use audit = audit_use::by_default,
            source_location where = source_location::current());

}  // namespace escrow::inline v0_2
