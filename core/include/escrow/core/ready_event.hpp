// Recording a ready event, with a second try, and asking about it.
#pragma once

#include <cuda_runtime_api.h>

#include "escrow/core/event.hpp"

namespace escrow {

// How recording went: at once; only with another event, so that the first is suspect; not at all,
// because the device is lost and runs nothing any more; not at all, and nothing tells when the work
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
// been the culprit, or the device another, or the current device lost and the stream's not.
// `stream` must not be capturing. Any thread.
[[nodiscard]] inline record_result record_ready(event& ready, int& device,
                                                cudaStream_t stream) noexcept {
  cudaError_t const status = cudaEventRecord(ready.get(), stream);
  if (status == cudaSuccess) [[likely]]
    return {record_outcome::recorded, status};
  return detail::record_ready_again(ready, device, stream, status);
}

// cudaEventQuery, but a sticky fault in the answer is one of the event's own device: where the
// current device is lost, CUDA may say so whatever it is asked, and the work before `ready` may run
// on. `device` is the event's as far as is known; with -1, or in vain, others are tried. As
// cudaEventQuery, it harms captures unless the thread is in Relaxed mode. Any thread.
[[nodiscard]] cudaError_t query_ready(cudaEvent_t ready, int device) noexcept;

// What the answer to such a question means: the work is not done, as far as is known; it is done,
// or its device is lost and runs nothing any more; there is no such event (any more), as after
// cudaDeviceReset, and nothing will ever tell.
enum class ready_answer { not_yet, done, gone };
[[nodiscard]] ready_answer answer_of(cudaError_t query_status) noexcept;

}  // namespace escrow
