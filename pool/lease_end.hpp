// SPDX-License-Identifier: Apache-2.0
// The ways in which a lease ends.
#pragma once

#include <string_view>

#include "capture_reuse.hpp"
#include "graph_walk.hpp"
#include "slot_pool_state.hpp"

namespace escrow::inline v0_2 {

// What: the steps of slot_pool::release(). Each empties the lease, or throws.
// Thread safety: that of the lease.
struct ESCROW_LOCAL slot_pool::lease_end {
  // `claim`: the lease's state_of(). Not `is_claiming_stream`: not known to be; of any device.
  static void release_on(state& in, claimed_slot& lease, stream_use on,
                         capture_reuse::claim_state const& claim, bool is_claiming_stream,
                         char const* call);
  // Records on `on`, which does not capture. Returns the first failure, already reported.
  static record_status release_eager(state& in, claimed_slot& lease, stream_use on) noexcept;
  // Of a claim in a sharing_group::run(), on its stream. False: otherwise, or it captures.
  static bool release_in_run(state& in, claimed_slot& lease, stream_use on) noexcept;
  static void release_or_defer(state& in, claimed_slot& lease, stream_use const& on) noexcept;
  // Of a capture that is over: its graph has its uses, but for those told since.
  static void release_after_capture(state& in, claimed_slot& lease) noexcept;
  static void release_idle(state& in, claimed_slot& lease) noexcept;  // only graphs use it
  static void release_reclaimed(state& in, claimed_slot& lease, stream_use const& on) noexcept;
  // `is_behind_claim`: that comes after the claim, without work between them, too.
  static void release_captured(state& in, claimed_slot& lease, capture_info const& of,
                               capture_frontier& end, bool is_behind_claim);
  // `is_told`: the failure was reported.
  static void release_after_failure(state& in, claimed_slot& lease, bool is_told) noexcept;

  [[nodiscard]] static slot& take_used(state& in, claimed_slot& lease) noexcept;
  static void forget_captured_uses(slot& used) noexcept;
  [[nodiscard]] static bool was_told_after_its_capture(slot const& leased) noexcept;

  // For a cudaStreamPerThread of another thread: throws usage_error.
  [[noreturn]] static void refuse_other_thread(slot const& leased, std::string_view what_it_did);
};

}  // namespace escrow::inline v0_2
