// Which launch of graph execs that share something was the last.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <mutex>

#include "escrow/core/event.hpp"
#include "escrow/detail/ready_event.hpp"

namespace escrow {

// What: the end of an exec's last launch: an event that the exec records after each of them. One
//   with conditional nodes has another for its uploads, which is the exec's alone.
// Thread safety: the exec's thread writes it, under the launch orders of what the exec holds; other
//   threads read it under one of these.
// Memory ordering: as event.
// Lifetime: shared by the exec, by the orders in which its launch is the last, and by who waits to
//   let go what it held. The event goes back to the cache.
// Capture: making it is capture-safe.
// Errors: the constructor throws cuda_error, std::bad_alloc.
struct launch_end {
  explicit launch_end(int of_device) : ready(event_cache::take(of_device)), device(of_device) {}
  launch_end(launch_end&&) = delete;
  ~launch_end() { event_cache::put(device, std::move(ready)); }

  event ready;
  int device;                         // the event's
  bool was_launched = false;          // if not, the event says nothing
  cudaError_t failure = cudaSuccess;  // why the end of the last launch could not be recorded
};

// What: the turns of launches that use the same resources: who launches holds the mutex from the
//   wait for the last launch to the record of his own.
// Thread safety: by its mutex. Several are locked in the order of their addresses. It is held
//   across the calls of one launch (capture query, wait, launch, record), none of which runs a
//   destructor.
// Memory ordering: the mutex's.
// Lifetime: shared by bundles that stand for the same things.
// Capture: none.
// Errors: none.
struct launch_order {
  std::mutex mutex;                  // guards the rest, and the launch_end of each exec with a turn
  std::shared_ptr<launch_end> last;  // null: nothing was launched yet
};

}  // namespace escrow
