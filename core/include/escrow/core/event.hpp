// SPDX-License-Identifier: Apache-2.0
// CUDA events: borrowed and owned.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <type_traits>

#include "escrow/core/error.hpp"
#include "escrow/core/stream.hpp"
#include "escrow/version.hpp"

namespace escrow::inline v0_2 {

// What: a borrowed cudaEvent_t. `wait` blocks a stream, `sync` blocks the host, `is_done` polls.
// Thread safety: any thread may use the event, as in CUDA.
// Memory ordering: after is_done() returned true or sync() returned, the host sees the device's
//   writes from before the event, as CUDA defines it.
// Lifetime: the event must outlive the reference.
// Capture: never record on a capturing stream an event that is also used eagerly: it becomes a
//   captured event, which cannot be waited on, queried or synchronized outside. Queries and
//   synchronization invalidate another thread's Global capture, except in Relaxed mode
//   (relaxed_capture_scope).
// Errors: cuda_error; usage_error if the event is null.
class ESCROW_API event_ref {
 public:
  // NOLINTNEXTLINE(google-explicit-constructor): converts implicitly by design.
  event_ref(cudaEvent_t event) noexcept : event_(event) {}
  event_ref(int) = delete;
  event_ref(std::nullptr_t) = delete;

  [[nodiscard]] cudaEvent_t get() const noexcept { return event_; }

  // Records the work enqueued on `stream` so far. The stream must be of the event's device.
  void record(stream_ref stream, source_location where = source_location::current()) const;
  // Makes `stream` (any device) wait for the last record. Does not block the host.
  void wait(stream_ref stream, source_location where = source_location::current()) const;
  // True if the work before the last record is done, or nothing was recorded. Does not block.
  [[nodiscard]] bool is_done(source_location where = source_location::current()) const;
  // Blocks the host until is_done().
  void sync(source_location where = source_location::current()) const;

 private:
  cudaEvent_t event_;
};

// What: owns a cudaEvent_t created on the current device, with cudaEventDisableTiming if no flags
//   are named.
// Thread safety: as event_ref; moving and destroying need exclusive access.
// Lifetime: destroys the event, which CUDA allows at any time and with any current device; pending
//   waits on it stay valid.
// Capture: creating and destroying are capture-safe.
// Errors: the constructor throws cuda_error; the destructor retries, then ignores the status.
class ESCROW_API event {
 public:
  // A new event of the current device.
  explicit event(source_location where = source_location::current());
  // Takes ownership; null gives an empty event.
  explicit event(cudaEvent_t native) noexcept : event_(native) {}
  // One that several own, such as the nodes of graphs (record_node, wait_node). `flags`:
  // cudaEventDefault, cudaEventDisableTiming, ..., or'ed. Throws cuda_error, std::bad_alloc.
  [[nodiscard]] static std::shared_ptr<event const> shared(
      unsigned flags = cudaEventDisableTiming, source_location where = source_location::current());
  // What shared() made, by its handle, e.g. a node's, while it has an owner. Any thread. Throws
  // usage_error for another handle.
  [[nodiscard]] static std::shared_ptr<event const> from(
      cudaEvent_t handle, source_location where = source_location::current());
  // What shared() made it with; nothing of another one. Any thread.
  [[nodiscard]] std::optional<unsigned> flags() const noexcept;

  [[nodiscard]] static event none() noexcept { return event(cudaEvent_t{}); }

  [[nodiscard]] explicit operator bool() const noexcept { return event_ != nullptr; }
  [[nodiscard]] cudaEvent_t get() const noexcept { return event_.get(); }
  [[nodiscard]] event_ref ref() const noexcept { return get(); }
  // Gives up ownership; the caller destroys the event.
  [[nodiscard]] cudaEvent_t detach() noexcept { return event_.release(); }

 private:
  struct destroy {
    ESCROW_API void operator()(cudaEvent_t unused) const noexcept;
  };
  event(unsigned flags, source_location where);

  std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, destroy> event_;
};

}  // namespace escrow::inline v0_2
