// SPDX-License-Identifier: Apache-2.0
// Stream arguments: cudaStream_t, and what has one, as cuda::stream_ref.
#pragma once

#include <cuda_runtime_api.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "escrow/core/error.hpp"

// Defined by nvcc --default-stream per-thread. A null stream would mean the per-thread stream in
// these headers and the legacy stream in the library.
#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
#error "Escrow does not support CUDA_API_PER_THREAD_DEFAULT_STREAM: pass cudaStreamPerThread"
#endif

namespace escrow::inline v0_2 {

namespace detail {
template <class S>
concept has_get = requires(S const& s) {
  { s.get() } -> std::same_as<cudaStream_t>;
};
template <class S>
concept has_value = requires(S const& s) {
  { s.value() } -> std::same_as<cudaStream_t>;
};
template <class S>
concept is_converted = std::is_class_v<S> && std::convertible_to<S const&, cudaStream_t>;
}  // namespace detail

// A cudaStream_t, a type whose get() returns one (cuda::stream_ref), a type whose value() returns
// one (rmm::cuda_stream_view), or a class that converts to one (at::cuda::CUDAStream).
template <class S>
concept stream_like = std::same_as<S, cudaStream_t> || detail::has_get<S> || detail::has_value<S> ||
    detail::is_converted<S>;

// What: a borrowed cudaStream_t, implicitly converted from anything stream_like.
// Thread safety: during a call that takes one, no other thread may begin or end a capture of the
//   stream: CUDA's driver (580) crashes then, also in cudaStreamGetCaptureInfo (measured).
// Lifetime: the stream must be alive during each call that takes one.
// Contexts: the stream belongs to its device's primary context (as the runtime's do) or to a green
//   context. On a stream of a context created with cuCtxCreate, events of the primary context
//   cannot be recorded (cudaErrorInvalidResourceHandle, measured).
class stream_ref {
 public:
  template <stream_like S>
  // NOLINTNEXTLINE(google-explicit-constructor): converts implicitly by design.
  stream_ref(S const& stream) noexcept : stream_(handle(stream)) {}
  stream_ref(int) = delete;             // a literal 0: use cudaStreamLegacy or cudaStreamPerThread
  stream_ref(std::nullptr_t) = delete;  // use cudaStreamLegacy or cudaStreamPerThread

  [[nodiscard]] cudaStream_t get() const noexcept { return stream_; }

 private:
  template <stream_like S>
  static cudaStream_t handle(S const& stream) noexcept {
    if constexpr (std::same_as<S, cudaStream_t>) {
      return stream;
    } else if constexpr (detail::has_get<S>) {
      return stream.get();
    } else if constexpr (detail::has_value<S>) {
      return stream.value();
    } else {
      return stream;
    }
  }

  cudaStream_t stream_;
};

namespace detail {
// A stream, and the line of the call that it is given to: for functions whose parameters end in a
// pack.
class stream_at {
 public:
  template <std::convertible_to<stream_ref> S>
  // NOLINTNEXTLINE(google-explicit-constructor): converts implicitly by design.
  stream_at(S const& given, source_location line = source_location::current()) noexcept
      : stream(given), where(line) {}

  stream_ref stream;
  source_location where;
};

// The id of `stream`, by the driver; as detail::query_capture().
[[nodiscard]] ESCROW_API cudaError_t query_stream_id(cudaStream_t stream,
                                                     unsigned long long& id) noexcept;
}  // namespace detail

// The stream's id: unique in the process, never reused; one per thread for cudaStreamPerThread and
// one per device for the null stream. `stream` must not be capturing: the query invalidates
// captures of every mode (measured). Throws cuda_error. Any thread. Source: cudaStreamGetId.
[[nodiscard]] inline std::uint64_t stream_id(stream_ref stream,
                                             source_location where = source_location::current()) {
  unsigned long long id = 0;
  cudaError_t const status = detail::query_stream_id(stream.get(), id);
  if (status == cudaErrorStreamCaptureUnsupported) [[unlikely]] {
    check(status, "cudaStreamGetId", where,
          "another thread captures `stream` now: let no thread use a stream that another captures");
  }
  check(status, "cudaStreamGetId", where);
  return id;
}

// The stream's device. `stream` must not be capturing: the query invalidates captures of every mode
// (measured). Throws cuda_error. Any thread. Source: cudaStreamGetDevice.
[[nodiscard]] inline int device_of(stream_ref stream,
                                   source_location where = source_location::current()) {
  int device = 0;
  check(cudaStreamGetDevice(stream.get(), &device), "cudaStreamGetDevice", where);
  return device;
}

}  // namespace escrow::inline v0_2
