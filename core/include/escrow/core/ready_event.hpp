// Recording a ready event, with a second try, and what the answer about it means.
#pragma once

#include <cuda_runtime_api.h>

#include "escrow/core/event.hpp"

namespace escrow {

// How recording went: at once; only with another event, so that the first is suspect; not at all,
// because the device is lost and nothing runs any more; not at all, and nothing tells when the work
// is done.
enum class record_outcome { recorded, recorded_anew, device_lost, failed };

// What: `outcome`, and the first status that was not cudaSuccess.
// Thread safety, Memory ordering, Lifetime, Capture, Errors: a value.
struct record_result {
  record_outcome outcome;
  cudaError_t status;
};

namespace detail {
// The second try, after the first failed with `first`.
[[nodiscard]] record_result record_ready_again(event& ready, int& device, cudaStream_t stream,
                                               cudaError_t first) noexcept;
}  // namespace detail

// Records `ready`, an event of `device`, on `stream`. If CUDA refuses, tries once more with a fresh
// event of the stream's own device, which then replaces `ready` and `device`: the event may have
// been the culprit, or the device another. `stream` must not be capturing. Any thread.
[[nodiscard]] inline record_result record_ready(event& ready, int& device,
                                                cudaStream_t stream) noexcept {
  cudaError_t const status = cudaEventRecord(ready.get(), stream);
  if (status == cudaSuccess) [[likely]]
    return {record_outcome::recorded, status};
  return detail::record_ready_again(ready, device, stream, status);
}

// What cudaEventQuery's answer means: the work is not done, as far as is known; it is done, or a
// device is lost and nothing runs any more; nothing will ever tell, because there is no such event
// (any more), as after cudaDeviceReset, or because other devices go on beside a lost one. Any
// thread.
enum class ready_answer { not_yet, done, gone };
[[nodiscard]] ready_answer answer_of(cudaError_t query_status) noexcept;

}  // namespace escrow
