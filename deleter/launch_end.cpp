// SPDX-License-Identifier: Apache-2.0
// Records of a launch's end, at once and late.
#include "escrow/internal/launch_end.hpp"

#include "escrow/core/capture.hpp"
#include "escrow/core/error.hpp"
#include "escrow/internal/retry_cleanup.hpp"

namespace escrow::inline v0_2 {

namespace {

cudaError_t note_record(launch_end& end, cudaStream_t stream, record_result result) noexcept {
  if (result.outcome == record_outcome::recorded) {
    end.become(end_state::recorded);
    return cudaSuccess;
  }
  auto const wait = [stream] { return cudaStreamSynchronize(stream); };
  bool const is_lost = result.outcome == record_outcome::device_lost;
  if (is_lost || retry_cleanup_relaxed(wait) == cudaSuccess) {
    end.become(end_state::none);
    return is_lost ? result.status : cudaSuccess;
  }
  end.failure = result.status;
  if (end.known() != end_state::due) end.become(end_state::unknown);
  return result.status;
}

bool is_capturing(cudaStream_t stream) noexcept {
  capture_info info;
  auto const ask = [&] { return detail::query_capture(stream, info, nullptr); };
  return retry_cleanup(ask) == cudaSuccess && !info.is_none();
}

}  // namespace

cudaError_t record_end(launch_end& end, stream_ref stream, recorded_by whom) noexcept {
  return note_record(end, stream.get(), record_ready(end.ready, end.device, stream.get(), whom));
}

bool launch_end::record_late() noexcept {
  std::lock_guard const lock(late_);
  if (known() != end_state::late) return true;
  if (is_capturing(on)) return false;
  note_record(*this, on, record_ready(ready, device, on));
  return true;
}

}  // namespace escrow::inline v0_2
