// SPDX-License-Identifier: Apache-2.0
// Owners of plain CUDA handles for tests that are about CUDA itself and so use nothing of the
// library.
#pragma once

#include <cuda_runtime_api.h>

#include <utility>

#include "status.hpp"

namespace escrow::test {

/// Owns one handle; its end destroys it and ignores the status, since a test may have broken the
/// context.
template <class Handle, cudaError_t (*destroy)(Handle)>
class owned {
 public:
  owned() = default;
  explicit owned(Handle handle) : handle_{handle} {}
  owned(owned&& other) noexcept : handle_{other.release()} {}
  owned& operator=(owned&& other) noexcept {
    if (this != &other) reset(other.release());
    return *this;
  }
  ~owned() { reset(); }

  [[nodiscard]] Handle get() const noexcept { return handle_; }
  [[nodiscard]] operator Handle() const noexcept { return handle_; }
  /// Gives the handle up, for a test that destroys it itself.
  [[nodiscard]] Handle release() noexcept { return std::exchange(handle_, nullptr); }
  void reset(Handle handle = nullptr) noexcept {
    if (handle_ != nullptr) static_cast<void>(destroy(handle_));
    handle_ = handle;
  }
  /// Where a CUDA function writes a new handle; what was owned is destroyed first.
  [[nodiscard]] Handle* out() noexcept {
    reset();
    return &handle_;
  }

 private:
  Handle handle_ = nullptr;
};

using owned_stream = owned<cudaStream_t, &cudaStreamDestroy>;
using owned_event = owned<cudaEvent_t, &cudaEventDestroy>;
using owned_graph = owned<cudaGraph_t, &cudaGraphDestroy>;
using owned_exec = owned<cudaGraphExec_t, &cudaGraphExecDestroy>;

[[nodiscard]] inline bool has_two_devices() {
  int count = 0;
  must(cudaGetDeviceCount(&count));
  return count >= 2;
}

[[nodiscard]] inline owned_stream make_stream(unsigned flags = cudaStreamNonBlocking) {
  owned_stream result;
  must(cudaStreamCreateWithFlags(result.out(), flags));
  return result;
}

[[nodiscard]] inline owned_event make_event() {
  owned_event result;
  must(cudaEventCreateWithFlags(result.out(), cudaEventDisableTiming));
  return result;
}

[[nodiscard]] inline owned_graph make_graph() {
  owned_graph result;
  must(cudaGraphCreate(result.out(), 0));
  return result;
}

[[nodiscard]] inline owned_graph clone(cudaGraph_t graph) {
  owned_graph result;
  must(cudaGraphClone(result.out(), graph));
  return result;
}

[[nodiscard]] inline owned_exec instantiate(cudaGraph_t graph) {
  owned_exec result;
  must(cudaGraphInstantiate(result.out(), graph, 0));
  return result;
}

}  // namespace escrow::test
