// Events kept for reuse, per device: creating and destroying them is slow and contended.
#pragma once

#include <cstddef>

#include "escrow/core/event.hpp"

namespace escrow {

// Where an event is recorded: outside of captures, or in captures alone. One that was recorded in a
// capture cannot be waited for or queried.
enum class event_use { eager, captured };

// What: a process-wide store of idle events without timing, one list a device and use.
// Thread safety: any thread may call anything.
// Memory ordering: put() on one thread happens before the take() that returns the same event.
// Lifetime: lives until the process ends and is leaked on purpose, with the events in it: at exit
//   the driver may be gone, and static destruction has no order (design law 6).
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

}  // namespace escrow
