// SPDX-License-Identifier: Apache-2.0
// What is known of streams, and records on them that may have to wait.
#include "stream_use.hpp"

#include <array>
#include <cstdio>
#include <exception>
#include <optional>

#include "escrow/internal/own_stream.hpp"
#include "escrow/internal/ready_event.hpp"
#include "escrow/internal/retry_cleanup.hpp"

namespace escrow::inline v0_2 {

std::string name_of(cudaStream_t stream) {
  std::array<char, 32> handle{};
  static_cast<void>(std::snprintf(handle.data(), handle.size(), "%p", static_cast<void*>(stream)));
  return std::string("stream ") + handle.data();
}

std::uint64_t bound_of_stream_ids(int device) noexcept {
  unsigned long long id = 0;
  for (int tries_left = 3; id == 0 && tries_left != 0; --tries_left) {
    try {
      device_scope const current(device);
      own_stream const made;
      if (!succeeded(detail::query_stream_id(made.get(), id))) id = 0;
    } catch (std::exception const&) {  // tries again
    }
  }
  return id;
}

bool is_destroyed(stream_use const& use) noexcept {
  unsigned long long id = 0;
  cudaError_t const status = detail::query_stream_id(use.handle, id);
  return succeeded(status) ? use.id != 0 && id != use.id : status == cudaErrorInvalidResourceHandle;
}

namespace {

// `call` with the stream, if it is known to be there and not to capture.
template <class Call>
record_status call_with(stream_use const& use, bool is_asked, Call call) noexcept {
  if (!is_asked && (is_other_thread(use) || is_reclaiming())) return {not_now};
  try {
    std::optional<device_scope> current;  // the null stream is that of the current device
    if (is_ambiguous(use.handle)) current.emplace(use.device);
    if (!is_asked) {
      if (!recordable_capture_of(use.handle).is_none()) return {not_now};
      // The stream was destroyed, and its handle reused.
      if (use.id != 0 && stream_id(use.handle) != use.id) return {cudaErrorInvalidResourceHandle};
    }
    return {call()};
  } catch (cuda_error const& error) {
    // Not permitted: in a CUDA callback.
    return {error.status() == cudaErrorNotPermitted ? not_now : error.status(), error.api()};
  } catch (std::exception const&) {
    return {cudaErrorMemoryAllocation};
  }
}

}  // namespace

record_status record(stream_use const& use, cached_event& to, bool is_asked) noexcept {
  return call_with(use, is_asked, [&] {
    to.make();
    record_result const result = record_ready(to.recorded, to.device, use.handle);
    return result.outcome == record_outcome::recorded ? cudaSuccess : result.status;
  });
}

bool wait_on_host(stream_use const& use) noexcept {
  auto const wait = [&use] { return cudaStreamSynchronize(use.handle); };
  return call_with(use, false, [&] { return retry_cleanup_relaxed(wait); }).status == cudaSuccess;
}

}  // namespace escrow::inline v0_2
