// Claims for one stream at the price of two queries.
#pragma once

#include <chrono>
#include <optional>
#include <utility>

#include "escrow/core/error.hpp"
#include "escrow/core/stream.hpp"
#include "escrow/detail/slot.hpp"
#include "escrow/pool/lease.hpp"

namespace escrow::inline v0_1 {

// Claims resources of a pool for one stream: resource_pool::on(). Works as the pool's claim(stream)
// and the leases' release(), with one difference. A resource that is released on the stream is
// claimed there again without an event, because the stream orders both uses. Make one for each
// thread and its stream, and keep it as long as the stream: making and destroying one takes locks
// of the pool.
//   Released resources get one event, all together, when more are free than the claimer may keep,
// by flush(), at the claimer's end, and at its next claim or release after a request; what that
// claim takes gets one at its release. Another claim sends a request if it finds no free resource
// whose work is known to be done. It also sends one if it takes the only free one of a full pool,
// because it does not ask whether the work on that is done.
// Until then no claim for another stream or in a capture gets them; other claims for this stream do
// if they find nothing else. Each of n claimers of a pool keeps at most unrecorded_max of them, and
// at most slots_max / 2 / n (see pool_options); if that is 0, each release records. A claimer that
// is not called keeps them back, so other claims may throw pool_exhausted: see
// pool_stats::unrecorded, and call flush() before a pause.
// Thread safety: one thread at a time. Leases: as others, on any thread. While a call of the
//   claimer, or the release of one of its leases, runs, no other thread may begin or end a capture
//   of the stream: see lease. On cudaStreamPerThread: the thread that made it.
// Lifetime: ends before its stream, also after flush(). May outlive its pool. Leases may outlive
//   it: their release then records an event. A stream may have several.
// Capture: if the stream captures, claims are those of resource_pool::claim. Nothing is recorded
//   then: resources that were released before wait until the capture has ended. If the claimer is
//   destroyed while the stream captures, or by a deleter, they wait with a deferred record: see
//   lease.
// Errors: as resource_pool::claim; usage_error after a move, or on another thread for
//   cudaStreamPerThread. If CUDA refuses a record, that is reported to the deleter's on_error, and
//   the record is deferred. A stream that was destroyed before the claimer is undefined behaviour:
//   see pool_options::check_streams.
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

  // As resource_pool::claim_for_host. Its release records an event, so that the next one can ask.
  [[nodiscard]] lease<T> claim_for_host(source_location where = source_location::current()) {
    constexpr char const* call = "claimer::claim_for_host";
    return lease<T>([&] {
      functions_->require_no_recycle(call, where);
      return slots_.claim(call, where, {}, 0, claim_kind::for_host);
    });
  }

  // As resource_pool::claim_kept.
  [[nodiscard]] lease<T> claim_kept(source_location where = source_location::current()) {
    lease<T> leased(
        [&] { return slots_.claim("claimer::claim_kept", where, {}, 0, claim_kind::kept); });
    leased.recycle(*functions_);
    return leased;
  }

  // As claim(), but returns nothing instead of waiting or throwing pool_exhausted.
  [[nodiscard]] std::optional<lease<T>> try_claim(
      source_location where = source_location::current()) {
    lease<T> leased(
        [&] { return slots_.claim("claimer::try_claim", where, std::chrono::nanoseconds(0)); });
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
