// Whether a stream is being captured, and calls that would harm a capture.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "escrow/core/error.hpp"
#include "escrow/core/stream.hpp"

namespace escrow {

enum class capture_status { none, active, invalidated };

// What capture_of() found. In `active`, `id` identifies the graph for good, while handles are
// reused; `graph` is being captured into, and valid while the capture goes on. Otherwise both are
// null.
struct capture_info {
  capture_status status = capture_status::none;
  std::uint64_t id = 0;
  cudaGraph_t graph = nullptr;

  [[nodiscard]] bool is_none() const noexcept { return status == capture_status::none; }
  [[nodiscard]] bool is_active() const noexcept { return status == capture_status::active; }
};

namespace detail {

// What the next operation on a capturing stream comes after. Valid until the next call on it.
struct capture_dependencies {
  cudaGraphNode_t const* nodes = nullptr;
  cudaGraphEdgeData const* edges = nullptr;
  std::size_t count = 0;
};

// Inline, as all of the common way is: every claim and release asks. `after` costs nothing more.
inline cudaError_t query_capture(cudaStream_t stream, capture_info& info,
                                 capture_dependencies* after = nullptr) noexcept {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long id = 0;
  cudaGraph_t graph = nullptr;
  capture_dependencies ignored;
  capture_dependencies& found = after == nullptr ? ignored : *after;
  cudaError_t const result = cudaStreamGetCaptureInfo(stream, &status, &id, &graph, &found.nodes,
                                                      &found.edges, &found.count);
  if (status == cudaStreamCaptureStatusNone) [[likely]]
    return result;
  if (status == cudaStreamCaptureStatusActive) {
    info = {.status = capture_status::active, .id = id, .graph = graph};
  } else {
    info.status = capture_status::invalidated;
  }
  return result;
}

[[noreturn]] void refuse_capture(char const* call, cudaError_t status);

}  // namespace detail

// Asks about `stream`. Capture-safe, 0.05 us. Throws cuda_error; cudaErrorStreamCaptureImplicit
// means that `stream` is the legacy stream and a blocking stream is capturing: the legacy stream
// may not be used then. Any thread. Source: cudaStreamGetCaptureInfo.
[[nodiscard]] inline capture_info capture_of(stream_ref stream) {
  capture_info info;
  check(detail::query_capture(stream.get(), info), "cudaStreamGetCaptureInfo");
  return info;
}

// capture_of(), for a call of Escrow that is about to use `stream`: throws usage_error, naming
// `call`, if the capture was invalidated, or if `stream` is the legacy stream while a blocking
// stream captures. Any thread. (`after` is for Escrow itself.)
[[nodiscard]] inline capture_info usable_capture_of(char const* call, stream_ref stream,
                                                    detail::capture_dependencies* after = nullptr) {
  capture_info info;
  cudaError_t const status = detail::query_capture(stream.get(), info, after);
  if (status != cudaSuccess || info.status == capture_status::invalidated) [[unlikely]] {
    detail::refuse_capture(call, status);
  }
  return info;
}

// What: puts the calling thread in cudaStreamCaptureModeRelaxed for a scope. Calls such as
//   cudaMalloc, cudaFree, cudaEventQuery or cudaGraphExecDestroy then leave every capture alone,
//   those of this thread and of others, whatever their mode. cudaDeviceSynchronize still kills any
//   capture.
// Thread safety: acts on the calling thread only; make and destroy it on the same thread.
// Lifetime: scopes nest; the end restores the mode found at the start.
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
