// SPDX-License-Identifier: Apache-2.0
// Claims for one stream at the price of two queries.
#pragma once

#include <chrono>
#include <optional>
#include <utility>

#include "escrow/core/error.hpp"
#include "escrow/core/stream.hpp"
#include "escrow/detail/slot_pool.hpp"
#include "escrow/pool/lease.hpp"
#include "escrow/version.hpp"

namespace escrow::inline v0_2 {

// Claims resources of a pool for one stream: resource_pool::on(). Works as the pool's claim(stream)
// and the leases' release(), but claims again without an event what was released on the stream.
//   Released resources get one event, all together: if they are too many
// (pool_options::unrecorded_max), at the claimer's next claim or release after another claim asked
// for them, by flush(), and at its end. Until then no other stream and no capture can claim them:
// call flush() before a pause, or other claims may throw pool_exhausted (pool_stats::unrecorded).
// Thread safety: one thread at a time. During its calls, as during a release of its leases, no
//   other thread may begin or end a capture of the stream.
// Lifetime: ends before its stream, also after flush(): see pool_options::check_streams. May
//   outlive its pool. Leases may outlive it: their release then records an event. With
//   streams_outlive_pool its end records nothing.
// Capture: claims as the pool. What was released before waits until the capture has ended; if the
//   claimer ends meanwhile, or on a deleter, with a deferred record: see lease.
// Errors: as resource_pool::claim; usage_error after a move, or on another thread for
//   cudaStreamPerThread. A record that CUDA refuses is reported to on_error and deferred.
// Example: examples/stream_claimer.cpp.
template <class T>
class claimer {
 public:
  // As resource_pool::claim, for the claimer's stream. If another claim has asked for what is free
  // here, records one event for all of it; what this claim takes then gets one at its release.
  ESCROW_KEEP lease<T> claim(source_location where = source_location::current()) {
    return lease<T>(functions_, [&] { return slots_.claim("claimer::claim", where); });
  }

  // As resource_pool::claim_for_host. Its release records an event, so that the next one can ask.
  ESCROW_KEEP lease<T> claim_for_host(source_location where = source_location::current()) {
    constexpr char const* call = "claimer::claim_for_host";
    return lease<T>([&] {
      detail::called_at(call, where, [&] { static_cast<void>(slots_.require_pool(call)); });
      functions_->require_no_recycle(call, where);
      return slots_.claim(call, where, {}, 0, claim_kind::for_host);
    });
  }

  // As resource_pool::claim_kept.
  ESCROW_KEEP lease<T> claim_kept(source_location where = source_location::current()) {
    return lease<T>(functions_, [&] {
      return slots_.claim("claimer::claim_kept", where, {}, 0, claim_kind::kept);
    });
  }

  // As claim(), but returns nothing instead of waiting or throwing pool_exhausted.
  ESCROW_KEEP std::optional<lease<T>> try_claim(
      source_location where = source_location::current()) {
    lease<T> leased(functions_, [&] {
      return slots_.claim("claimer::try_claim", where, std::chrono::nanoseconds(0));
    });
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

}  // namespace escrow::inline v0_2
