// SPDX-License-Identifier: Apache-2.0
// Which stream a call was given, and whether it is one that is known.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>

#include "escrow/core/capture.hpp"
#include "escrow/core/error.hpp"
#include "escrow/core/stream.hpp"
#include "escrow/detail/slot_pool.hpp"
#include "escrow/internal/device.hpp"
#include "escrow/internal/driver.hpp"
#include "escrow/internal/ready_event.hpp"

namespace escrow::inline v0_2 {

// `stream` with that id and device, on the calling thread.
[[nodiscard]] inline stream_use use_of(stream_ref stream, std::uint64_t id, int device) noexcept {
  cudaStream_t const handle = stream.get() == nullptr ? cudaStreamLegacy : stream.get();
  return {handle, id, handle == cudaStreamPerThread ? thread_number() : 0, device};
}
[[nodiscard]] inline bool is_other_thread(stream_use const& use) noexcept {
  return use.thread != 0 && use.thread != thread_number();
}
// Whether `given`, on the calling thread, is the stream of `known`.
[[nodiscard]] inline bool is_same_stream(stream_use const& known,
                                         stream_use const& given) noexcept {
  if (known.id != 0 && given.id != 0) return known.id == given.id;
  return known.handle == given.handle && known.thread == given.thread &&
         (!is_ambiguous(known.handle) || known.device == given.device) && given.id < known.id_below;
}
// Whether the stream of `use` was destroyed: `given` has its handle, and is another one.
[[nodiscard]] inline bool was_destroyed(stream_use const& use, stream_use const& given) noexcept {
  if (use.handle != given.handle || is_ambiguous(use.handle) || given.id == 0) return false;
  return use.id != 0 ? use.id != given.id : given.id >= use.id_below;
}
// False if the stream captures or cannot be asked: query_capture() tells then. The cheapest query.
[[nodiscard]] inline bool captures_nothing(cudaStream_t stream) noexcept {
  auto status = cudaStreamCaptureStatusNone;
  cudaError_t const failure = query_is_capturing(stream, status);
  if (failure != cudaSuccess) [[unlikely]]
    detail::clear_last_error(failure);
  return failure == cudaSuccess && status == cudaStreamCaptureStatusNone;
}

// "stream 0x..."
[[nodiscard]] std::string name_of(cudaStream_t stream);

// Upper bound of existing streams' ids: CUDA counts up (measured). 0 on failure, which may not
// repeat. Capture-safe.
[[nodiscard]] std::uint64_t bound_of_stream_ids(int device) noexcept;
[[nodiscard]] bool is_destroyed(stream_use const& use) noexcept;  // or has another id
inline constexpr cudaError_t not_now = cudaErrorNotReady;         // no record fails with that
// What became of a record. The call is CUDA's that failed.
struct record_status {
  cudaError_t status = cudaSuccess;
  char const* call = "cudaEventRecord";
};
// Returns the first failure, or `not_now`: it captures, or cannot be asked on this thread.
// `is_asked`: this call was given the stream and knows that it does not capture.
[[nodiscard]] record_status record(stream_use const& use, cached_event& to, bool is_asked) noexcept;
// Blocks until the stream is done, where a record failed: as long as its work takes. False: it did
// not wait.
[[nodiscard]] bool wait_on_host(stream_use const& use) noexcept;

}  // namespace escrow::inline v0_2
