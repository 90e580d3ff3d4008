// SPDX-License-Identifier: Apache-2.0
// Capture status of a stream; scopes for calls that would invalidate captures, and for calls that
// create or destroy related graphs.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "escrow/core/error.hpp"
#include "escrow/core/stream.hpp"
#include "escrow/version.hpp"

namespace escrow::inline v0_2 {

// As cudaStreamCaptureStatus. An invalidated capture still has to be ended.
enum class capture_status { none, active, invalidated };

// Result of capture_of(). If `active`: `id` identifies the graph permanently (handles are reused),
// and `graph` is the graph being captured, valid during the capture. Otherwise both are zero.
struct capture_info {
  capture_status status = capture_status::none;
  std::uint64_t id = 0;
  cudaGraph_t graph = nullptr;

  [[nodiscard]] bool is_none() const noexcept { return status == capture_status::none; }
  [[nodiscard]] bool is_active() const noexcept { return status == capture_status::active; }
};

namespace detail {

// Nodes that the stream's next operation depends on. Valid until the next call on the stream.
struct capture_dependencies {
  cudaGraphNode_t const* nodes = nullptr;
  cudaGraphEdgeData const* edges = nullptr;
  std::size_t count = 0;
};

// The capture of `stream`, asked of the driver where that is possible: internal/driver.hpp. Filling
// `after` costs nothing more.
[[nodiscard]] ESCROW_API cudaError_t query_capture(cudaStream_t stream, capture_info& info,
                                                   capture_dependencies* after = nullptr) noexcept;

[[noreturn]] ESCROW_API void refuse_capture(char const* call, cudaError_t status);

}  // namespace detail

// Capture status of `stream`. 0.03 us. Throws cuda_error; cudaErrorStreamCaptureImplicit means that
// `stream` is the legacy stream, unusable while a blocking stream captures. Any thread.
// Capture-safe. Source: cudaStreamGetCaptureInfo.
[[nodiscard]] inline capture_info capture_of(stream_ref stream,
                                             source_location where = source_location::current()) {
  capture_info info;
  check(detail::query_capture(stream.get(), info), "cudaStreamGetCaptureInfo", where);
  return info;
}

// As capture_of(), for an Escrow call that will use `stream`. Throws usage_error, naming `call`, if
// the capture is invalidated or `stream` is the legacy stream while a blocking stream captures. Any
// thread. (`after` is for Escrow itself.)
[[nodiscard]] ESCROW_API capture_info usable_capture_of(
    char const* call, stream_ref stream, detail::capture_dependencies* after = nullptr);

// What: puts the calling thread in cudaStreamCaptureModeRelaxed for a scope. Calls such as
//   cudaMalloc, cudaFree, cudaEventQuery or cudaGraphExecDestroy then invalidate no capture of any
//   thread or mode. cudaDeviceSynchronize still invalidates every capture.
// Thread safety: affects the calling thread only; create and destroy on the same thread.
// Lifetime: scopes nest; the destructor restores the previous mode.
// Errors: the constructor throws cuda_error and then has changed nothing.
class [[nodiscard]] ESCROW_API relaxed_capture_scope {
 public:
  // Relaxes the thread until the scope ends.
  explicit relaxed_capture_scope(source_location where = source_location::current());
  relaxed_capture_scope(relaxed_capture_scope&&) = delete;
  ~relaxed_capture_scope();

 private:
  cudaStreamCaptureMode previous_ = cudaStreamCaptureModeRelaxed;
};

// What: serializes the calls that create or destroy related graphs and execs: a graph, its clones,
//   its copies in child nodes, and the execs instantiated or updated from it. CUDA links them
//   without a lock: destroying one while another is created or destroyed corrupts the host heap.
//   Escrow holds this lock around its own calls. Plain calls need it if another thread, e.g.
//   Escrow's worker, may concurrently create or destroy a related one: cudaGraphInstantiate...,
//   cudaGraphClone, cudaGraphNodeFindInClone, cudaGraphAddChildGraphNode (cudaGraphAddNode of a
//   child), cudaGraphExecUpdate, cudaGraphNodeSetParams and cudaGraphExecNodeSetParams of a child,
//   cudaGraphExecDestroy, cudaGraphDestroy, cudaGraphDestroyNode. So do cudaStreamEndCapture and
//   cudaStreamDestroy of an invalidated capture, which destroy its graph. Launches, and adding and
//   setting other nodes, do not.
// Thread safety: any thread. One lock per process, or per copy of this library. Recursive.
// Waits: for CUDA calls. While holding it, wait neither for another thread (deleter::drain() does)
//   nor for the GPU. Before cudaGraphExecDestroy of an exec with conditional nodes, which waits for
//   its launches and uploads, wait for those without the lock.
// Lifetime: until the end of the scope, on one thread. Usable during exit.
// Capture: capture-safe. It does not include a relaxed_capture_scope.
class [[nodiscard]] ESCROW_API graph_lifetime_lock {
 public:
  // Waits for the lock. Destroy callbacks, also of other libraries' user objects, may run under it.
  // So hold no lock that one of them takes, e.g. Python's GIL, while you call this or anything else
  // of Escrow.
  graph_lifetime_lock() noexcept;
  graph_lifetime_lock(graph_lifetime_lock&&) = delete;
  ~graph_lifetime_lock();
};

}  // namespace escrow::inline v0_2
