// An owned CUDA event without timing.
#pragma once

#include <cuda_runtime_api.h>

#include <utility>

#include "escrow/core/event_ref.hpp"
#include "escrow/core/source_location.hpp"

namespace escrow {

// What: owns a cudaEvent_t created with cudaEventDisableTiming on the current device.
// Thread safety: as event_ref; moving and destroying need exclusive access.
// Memory ordering: as event_ref.
// Lifetime: destroys the event, which CUDA allows at any time and on any current device; pending
//   waits on it stay valid.
// Capture: creating and destroying are capture-safe.
// Errors: the constructor throws cuda_error; the destructor ignores the status, because there is no
//   one to tell and nothing left to do.
class event {
 public:
  explicit event(source_location where = source_location::current());
  // Takes over an event that somebody made; null gives an empty event.
  explicit event(cudaEvent_t native) noexcept : event_(native) {}
  event(event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  event& operator=(event&& other) noexcept {
    event taken(std::move(other));
    std::swap(event_, taken.event_);
    return *this;
  }
  ~event();

  // An event that owns nothing.
  [[nodiscard]] static event none() noexcept { return event(cudaEvent_t{}); }

  [[nodiscard]] explicit operator bool() const noexcept { return event_ != nullptr; }
  [[nodiscard]] cudaEvent_t get() const noexcept { return event_; }
  [[nodiscard]] event_ref ref() const noexcept { return event_; }
  // Gives the handle up; the caller destroys it.
  [[nodiscard]] cudaEvent_t detach() noexcept { return std::exchange(event_, nullptr); }

 private:
  cudaEvent_t event_;
};

}  // namespace escrow
