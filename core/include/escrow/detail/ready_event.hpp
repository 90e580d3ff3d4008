// Events that say when work is done: kept for reuse, recorded with a second try, and asked.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "escrow/core/event.hpp"

namespace escrow {

// Where an event is recorded: outside of captures, or in captures alone. One that was recorded in a
// capture cannot be waited for or queried.
enum class event_use { eager, captured };

// What: a process-wide store of idle events without timing, one list a device and use.
// Thread safety: any thread may call anything. put() on one thread happens before the take() that
//   returns the same event.
// Lifetime: never destroyed, nor are the events in it: see never_destroyed.
// Capture: capture-safe.
// Errors: take() throws cuda_error when an event has to be made and cannot, and std::bad_alloc.
class event_cache {
 public:
  // An idle event of `device`, from the store or newly made. May allocate when the store is empty.
  [[nodiscard]] static event take(int device, event_use use = event_use::eager);
  // Gives an event of `device` back; pending work on it is harmless, as its next use records it
  // anew. Destroys it instead if the store is full.
  static void put(int device, event&& idle, event_use use = event_use::eager) noexcept;

  // How many idle events each list keeps at most.
  static constexpr std::size_t idle_max = 4096;
};

// How recording went: at once; only with another event, so that the first is suspect; not at all,
// because the device is lost and nothing runs any more; not at all, and nothing tells when the work
// is done.
enum class record_outcome { recorded, recorded_anew, device_lost, failed };

struct record_result {
  record_outcome outcome;
  cudaError_t status;  // the first that was not cudaSuccess
};

// Records `ready`, an event of `device`, on `stream`. If CUDA refuses, tries once more with a fresh
// event of the stream's own device, which then replaces `ready` and `device`: the event may have
// been the culprit, or the device another. `stream` must not be capturing. Any thread.
[[nodiscard]] record_result record_ready(event& ready, int& device, cudaStream_t stream) noexcept;

// What cudaEventQuery's answer means: the work is not done, as far as is known; it is done, or a
// device is lost and nothing runs any more; nothing will ever tell, because there is no such event
// (any more), as after cudaDeviceReset, or because other devices go on beside a lost one. Any
// thread.
enum class ready_answer { not_yet, done, gone };
[[nodiscard]] ready_answer answer_of(cudaError_t query_status) noexcept;

}  // namespace escrow
