// A borrowed CUDA event.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "escrow/core/stream_ref.hpp"

namespace escrow {

// What: a borrowed cudaEvent_t with the four things one does with it. `wait` orders the device,
//   `sync` blocks the host, `is_done` polls.
// Thread safety: a value; the event itself may be used from any thread, as in CUDA.
// Memory ordering: after is_done() returned true or sync() returned, the host sees what the device
//   wrote before the event, as CUDA defines it.
// Lifetime: borrows; the event must outlive the reference.
// Capture: never record on a capturing stream an event that is used eagerly too: it becomes a
//   captured event, which cannot be waited on, queried or synchronized outside. Querying and
//   synchronizing kill a foreign Global capture unless the thread is in Relaxed mode
//   (relaxed_capture_scope).
// Errors: cuda_error.
class event_ref {
 public:
  // NOLINTNEXTLINE(google-explicit-constructor): a plain event is taken without ceremony.
  event_ref(cudaEvent_t event) noexcept : event_(event) {}
  event_ref(int) = delete;
  event_ref(std::nullptr_t) = delete;

  [[nodiscard]] cudaEvent_t get() const noexcept { return event_; }

  // Records all work enqueued on `stream` so far. The stream must be of the event's device.
  void record(stream_ref stream) const;
  // Makes `stream`, of any device, wait for the last record. Does not block the host.
  void wait(stream_ref stream) const;
  // True once the work before the last record is done, or if there was none. Does not block.
  [[nodiscard]] bool is_done() const;
  // Blocks the host until is_done().
  void sync() const;

 private:
  cudaEvent_t event_;
};

}  // namespace escrow
