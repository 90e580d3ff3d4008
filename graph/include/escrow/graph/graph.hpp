// An owned CUDA graph, and capturing a stream into one.
#pragma once

#include <cuda_runtime_api.h>

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <utility>

#include "escrow/core/stream.hpp"
#include "escrow/deleter/deleter.hpp"

namespace escrow {

class deleter;
class graph_core;

namespace detail {
// The core, if there is one that has a graph; else throws usage_error, in the name of `call`.
graph_core& require_graph(char const* call, graph_core* core);
}  // namespace detail

// What: owns a cudaGraph_t, and with it the references that the graph has to leases and retired
//   owners, and to what nodes keep that are added by hand (escrow/nodes.hpp).
// Thread safety: a value; CUDA lets one thread at a time use a graph. Its clones, parents and execs
//   may be used, and destroyed, on other threads meanwhile. Plain calls that create or destroy one
//   of them, or this graph, are made in a graph_lifetime_lock then.
// Lifetime: the destructor destroys the graph. What it held is released once its clones and execs
//   are destroyed, too, and their launches done. Bodies of its conditional nodes keep it.
// Capture: everything here is capture-safe; what CUDA forbids in a capture runs in Relaxed mode.
// Errors: cuda_error, usage_error. The destructor ignores the status.
//   What nodes keep is put on the graph when its handle is asked for, or it is instantiated or
//   copied: that can fail, and asks the graph for its id (graph_id_of()).
class graph {
 public:
  // A new, empty graph; the process's own deleter, or `its`, destroys what its nodes keep.
  // Throws cuda_error, std::bad_alloc. Source: cudaGraphCreate.
  graph();
  explicit graph(deleter& its);
  // Takes over a graph that plain calls created, e.g. cudaStreamEndCapture. `id` is its capture id,
  // if the caller knows it. Throws std::bad_alloc, cuda_error; the graph is then destroyed.
  explicit graph(cudaGraph_t native, std::uint64_t id = 0);
  graph(graph&& other) noexcept;
  graph& operator=(graph&& other) noexcept;
  ~graph();

  // The CUDA handle. Never owning; null if moved from or detached. Throws cuda_error,
  // std::bad_alloc.
  [[nodiscard]] cudaGraph_t get() const;
  // The capture id, which identifies the graph for good; 0 if it is not known.
  [[nodiscard]] std::uint64_t id() const noexcept;
  // Gives the handle up; the caller destroys it (graph_lifetime_lock). Throws as get(), and has
  // changed nothing then.
  [[nodiscard]] cudaGraph_t detach();

  // A copy, which holds what this one holds. Source: cudaGraphClone.
  [[nodiscard]] graph clone() const;
  // Adds a node that runs a copy of `child`, which holds what `child` holds, after the end of all
  // nodes that are there now. Returns the node, which belongs to this graph. As child_node
  // otherwise. Source: cudaGraphAddChildGraphNode.
  cudaGraphNode_t add_child(graph const& child);

  // Writes the graph in Graphviz's DOT. `flags`: cudaGraphDebugDotFlags, or'ed. Throws cuda_error:
  // cudaErrorOperatingSystem if the file cannot be written. Source: cudaGraphDebugDotPrint.
  void write_dot(std::filesystem::path const& file, unsigned flags = 0) const;

  // What the graph, with its child graphs, keeps alive as far as Escrow knows: of what a plain
  // cudaGraphClone holds it knows nothing. Throws cuda_error, std::bad_alloc.
  [[nodiscard]] resource_usage held() const;

  // For building by hand (escrow/nodes.hpp): what nodes and bodies refer to; null if moved from.
  [[nodiscard]] std::shared_ptr<graph_core> const& core() const noexcept { return shared_; }
  // The same: a node of `in` with a copy of this graph. Throws as add_child().
  [[nodiscard]] cudaGraphNode_t embed_in(char const* call, cudaGraph_t in,
                                         std::span<cudaGraphNode_t const> after) const;

 private:
  explicit graph(std::shared_ptr<graph_core> core) noexcept;
  [[nodiscard]] graph_core& require(char const* call) const;

  std::shared_ptr<graph_core> shared_;  // null if moved from
};

// What: a capture of a stream between begin and end. capture() below is the plain way to use it.
// Thread safety: one thread, the one that made it.
// Lifetime: if end() was not called, the destructor ends the capture and drops what was captured.
// Capture: begins one.
// Errors: cuda_error. After a failed end() the capture is over and the graph is gone.
class capture_scope {
 public:
  // Begins to capture `stream`. Source: cudaStreamBeginCapture.
  explicit capture_scope(stream_ref stream,
                         cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal);
  capture_scope(capture_scope&&) = delete;
  ~capture_scope();

  // Ends the capture; throws cuda_error if it was invalidated or a fork was not joined. Once.
  // Source: cudaStreamEndCapture.
  [[nodiscard]] graph end();

 private:
  [[nodiscard]] std::uint64_t id_of_capture() const noexcept;
  void drop() noexcept;

  cudaStream_t stream_;
  bool is_open_ = true;
};

// Calls `enqueue(stream)` while `stream` is being captured and returns the graph. If `enqueue`
// throws, the capture is ended, what was captured is dropped, with its claims, and the exception
// goes on.
template <std::invocable<stream_ref> Enqueue>
[[nodiscard]] graph capture(stream_ref stream, Enqueue&& enqueue,
                            cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal) {
  capture_scope scope(stream, mode);
  std::forward<Enqueue>(enqueue)(stream);
  return scope.end();
}

}  // namespace escrow
