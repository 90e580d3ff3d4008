// An event that is shared, and found again by its handle.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <optional>

#include "escrow/core/event_ref.hpp"
#include "escrow/core/source_location.hpp"

namespace escrow {

// What: a share of a cudaEvent_t, with what CUDA does not tell of an event: its flags and its
//   device. A handle that is read from a graph leads back to it.
// Thread safety: a value; the event may be used from any thread, as in CUDA.
// Memory ordering: as event_ref.
// Lifetime: the last share destroys the event, which CUDA allows at any time.
// Capture: creating, finding and destroying are capture-safe.
// Errors: make() throws cuda_error, std::bad_alloc.
class shared_event {
 public:
  // An event of the current device. Source: cudaEventCreateWithFlags.
  [[nodiscard]] static shared_event make(unsigned flags = cudaEventDisableTiming,
                                         source_location where = source_location::current());
  // The event that has this handle, if it was made here and is still shared. Any thread.
  [[nodiscard]] static std::optional<shared_event> find(cudaEvent_t handle);

  // Null if it was moved from.
  [[nodiscard]] cudaEvent_t get() const noexcept;
  [[nodiscard]] event_ref ref() const noexcept { return get(); }
  // As given to make().
  [[nodiscard]] unsigned flags() const noexcept;
  [[nodiscard]] int device() const noexcept;

  friend bool operator==(shared_event const& one, shared_event const& other) noexcept = default;

 private:
  struct state;

  explicit shared_event(std::shared_ptr<state const> shared) noexcept
      : shared_(std::move(shared)) {}

  std::shared_ptr<state const> shared_;
};

}  // namespace escrow
