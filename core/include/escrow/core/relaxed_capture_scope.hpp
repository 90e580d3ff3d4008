// Lets the calling thread make calls that would kill a stream capture in progress.
#pragma once

#include <cuda_runtime_api.h>

namespace escrow {

// What: puts the calling thread in cudaStreamCaptureModeRelaxed for a scope. Calls such as
//   cudaMalloc, cudaFree, cudaEventQuery or cudaGraphExecDestroy then leave every capture alone,
//   those of this thread and of others, whatever their mode. cudaDeviceSynchronize still kills any
//   capture.
// Thread safety: acts on the calling thread only; make and destroy it on the same thread.
// Memory ordering: none.
// Lifetime: scopes nest; the end restores the mode found at the start, also when unwinding.
// Capture: capture-safe.
// Errors: the constructor throws cuda_error and then has changed nothing.
class [[nodiscard]] relaxed_capture_scope {
 public:
  relaxed_capture_scope();
  relaxed_capture_scope(relaxed_capture_scope&&) = delete;
  ~relaxed_capture_scope();

 private:
  cudaStreamCaptureMode previous_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace escrow
