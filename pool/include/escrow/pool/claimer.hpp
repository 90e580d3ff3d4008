// Claims for one stream at the price of two queries.
#pragma once

#include <optional>
#include <utility>

#include "escrow/core/error.hpp"
#include "escrow/core/stream.hpp"
#include "escrow/detail/slot.hpp"
#include "escrow/pool/lease.hpp"

namespace escrow::inline v0_1 {

// Claims resources of a pool for one stream: resource_pool::on(). As the pool's claim(stream) and
// the leases' release(), but what is released on the stream is claimed there again without an
// event, because the stream orders both uses.
//   One event is recorded for all released slots when others need them: by the next claim or
// release here after a claim elsewhere found no other slot, when more than
// pool_options::unrecorded_max are idle, by flush(), and at the end. Until then no claim for
// another stream or in a capture gets them; other claims for this stream do if they find nothing
// else. A claimer that is not called again keeps at most that many, and all of a pool together at
// most half of slots_max: see pool_stats::unrecorded.
// Thread safety: one thread at a time, and no other begins a capture of the stream meanwhile: calls
//   may record on it. Leases: as others, on any thread. On cudaStreamPerThread: the thread that
//   made it.
// Lifetime: ends before its stream. May outlive its pool. Leases may outlive it: their release then
//   records an event.
// Capture: if the stream captures, claims are those of resource_pool::claim. Nothing is recorded
//   then: what was released before waits until the capture has ended. If the claimer ends in a
//   capture, that is a deferred record: see lease.
// Errors: as resource_pool::claim. If CUDA refuses a record, that is reported to the deleter's
//   on_error, and a deferred record. A stream that was destroyed before the claimer is undefined
//   behaviour: see pool_options::check_streams.
// Example: examples/stream_claimer.cpp.
template <class T>
class claimer {
 public:
  // As resource_pool::claim, for the claimer's stream.
  [[nodiscard]] lease<T> claim(source_location where = source_location::current()) {
    lease<T> leased([&] { return slots_.claim("claimer::claim", where); });
    leased.recycle(*functions_);
    return leased;
  }

  // The same, but returns nothing instead of waiting or throwing pool_exhausted.
  [[nodiscard]] std::optional<lease<T>> try_claim(
      source_location where = source_location::current()) {
    lease<T> leased([&] { return slots_.try_claim("claimer::try_claim", where); });
    leased.recycle(*functions_);
    return leased ? std::optional(std::move(leased)) : std::nullopt;
  }

  // Makes what was released available to all streams: before a pause, for example. Records at most
  // one event. Throws usage_error if the stream is being captured.
  void flush(source_location where = source_location::current()) {
    slots_.flush("claimer::flush", where);
  }

 private:
  friend class resource_pool<T>;

  claimer(claimer_slots&& slots, slot_functions<T> const& functions) noexcept
      : slots_(std::move(slots)), functions_(&functions) {}

  claimer_slots slots_;
  slot_functions<T> const* functions_;  // owned by the slot_pool
};

}  // namespace escrow::inline v0_1
