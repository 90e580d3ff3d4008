// Capturing a stream into a graph, as a function call.
#pragma once

#include <cuda_runtime_api.h>

#include <concepts>
#include <cstdint>
#include <utility>

#include "escrow/core/stream.hpp"
#include "escrow/graph/graph.hpp"

namespace escrow {

// What: a capture of a stream between begin and end. capture() below is the plain way to use it.
// Thread safety: one thread, the one that made it.
// Lifetime: if end() was not called, the destructor ends the capture and drops what was captured.
// Capture: begins one.
// Errors: cuda_error. After a failed end() the capture is over and its graph destroyed.
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
