// SPDX-License-Identifier: Apache-2.0
// Completion events: cached, recorded with one retry, and queried.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <utility>

#include "escrow/core/event.hpp"

namespace escrow::inline v0_2 {

// What: a process-wide cache of idle events without timing, one list per device.
// Thread safety: any thread may call anything. put() happens before the take() that returns the
//   same event.
// Lifetime: neither the cache nor its events are destroyed: see never_destroyed.
// Capture: capture-safe.
// Errors: take() throws cuda_error if it cannot create an event, and std::bad_alloc.
class event_cache {
 public:
  // An idle event of `device`, cached or new. May allocate if none is cached.
  [[nodiscard]] static event take(int device);
  // Returns an event of `device`. It may have pending work: its next use records it anew. Destroyed
  // instead if the list is full.
  static void put(int device, event&& idle) noexcept;

  static constexpr std::size_t idle_max = 4096;  // idle events per list, at most
};

// An event of `device` that goes back to the cache.
struct cached_event {
  explicit cached_event(int its_device) noexcept : device(its_device) {}
  cached_event(cached_event&&) noexcept = default;
  ~cached_event() {
    if (recorded) event_cache::put(device, std::move(recorded));
  }

  void make() {  // if it is none yet; throws as take()
    if (!recorded) recorded = event_cache::take(device);
  }

  int device;
  event recorded = event::none();
};

// recorded, perhaps with another event, as the first one failed; device_lost: not recorded,
// and nothing runs any more; failed: not recorded, so completion of the work is unknown.
enum class record_outcome { recorded, device_lost, failed };

struct record_result {
  record_outcome outcome;
  cudaError_t status;  // the first that was not cudaSuccess
};

// Who records: a thread that may be in a callback, or one that has just launched on the stream by
// the runtime.
enum class recorded_by { any, launcher };

// Records `ready`, an event of `device`, on `stream`. If that fails, retries with a fresh event of
// the stream's device, which replaces `ready` and `device`: the event may be invalid or of another
// device. `stream` must not be capturing. Any thread.
[[nodiscard]] record_result record_ready(event& ready, int& device, cudaStream_t stream,
                                         recorded_by whom = recorded_by::any) noexcept;

// Meaning of a cudaEventQuery status. not_yet: not known to be done. done: also if a device is lost
// and nothing runs any more. gone: will never be known, because the event does not exist (e.g.
// after cudaDeviceReset) or other devices still run after one was lost. Any thread.
enum class ready_answer { not_yet, done, gone };
[[nodiscard]] ready_answer answer_of(cudaError_t query_status) noexcept;

}  // namespace escrow::inline v0_2
