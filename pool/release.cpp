// SPDX-License-Identifier: Apache-2.0
// The end of a lease, on the right streams, whatever fails.
#include <exception>
#include <optional>
#include <utility>

#include "escrow/core/error.hpp"
#include "escrow/internal/deleter_core.hpp"
#include "escrow/internal/device.hpp"
#include "escrow/internal/used_alone.hpp"
#include "slot_pool_state.hpp"

namespace escrow::inline v0_2 {

slot& slot_pool::require_slot(char const* call, claimed_slot const& lease, source_location where) {
  if (lease.what == nullptr) {
    detail::refuse_at(where, call, "the lease is empty: it was released or moved from",
                      "claim again");
  }
  return *lease.what;
}

stream_use slot_pool::state::use_without_id(stream_ref stream) const {
  stream_use use = use_of(stream, 0, options.device);
  if (is_ambiguous(use.handle)) use.device = current_device();
  return use;
}

// How a lease ends:
// -- of a capture that is over          its graph keeps the slot; streams it was told of since get
//                                       events
// -- on a deleter's worker              as release_reclaimed() says, but for one of a
//                                       sharing_group::run() there
// -- in a CUDA callback                 has its records deferred
// -- else                               as release_on() says
void slot_pool::release(claimed_slot& lease) {
  tell_used_alone(&lease, "lease::release");
  state& in = *require_slot("lease::release", lease).pool_.state_;
  capture_reuse::claim_state claim;
  if (lease.capture_id != 0) [[unlikely]] {
    claim = in.reuse.state_of(lease);
    if (claim.is_over) return in.release_after_capture(lease);
  }
  if (is_reclaiming()) {
    // A run() of this thread's: so it may call with the stream.
    if (lease.what->place_ != nullptr && in.release_in_run(lease, lease.on)) return;
    return in.release_reclaimed(lease, lease.on);
  }
  if (is_other_thread(lease.on)) [[unlikely]]
    state::refuse_other_thread(*lease.what, "claimed");
  if (lease.capture_id == 0) in.require_stream("lease::release", lease.on, lease.what);
  try {
    std::optional<device_scope> device;
    if (is_ambiguous(lease.on.handle)) device.emplace(in.options.device);  // the claiming stream's
    if (lease.uncovered_by != nullptr && in.release_uncovered(lease)) return;
    in.release_on(lease, lease.on, claim, true, "lease::release");
  } catch (cuda_error const& failed) {
    if (failed.status() != cudaErrorNotPermitted || lease.what == nullptr) throw;
    in.release_or_defer(lease, lease.on);
  }
}

void slot_pool::release(claimed_slot& lease, stream_ref stream, char const* call) {
  tell_used_alone(&lease, call);
  state& in = *require_slot(call, lease).pool_.state_;
  try {
    stream_use const on = in.use_without_id(stream);
    bool const needs_none = lease.uncovered_by != nullptr || is_reclaiming();
    bool const is_claiming = needs_none && lease.capture_id == 0 && is_same_stream(lease.on, on);
    if (is_claiming) return release(lease);
    if (is_reclaiming()) return in.release_reclaimed(lease, on);
    in.release_on(lease, on, in.reuse.state_of(lease), false, call);
  } catch (cuda_error const& failed) {
    if (failed.status() != cudaErrorNotPermitted || lease.what == nullptr) throw;
    // A default stream is that of the pool's device: a callback has no current one.
    if (use_of(stream, 0, in.options.device).handle == lease.on.handle) return release(lease);
    throw usage_error(call,
                      "a CUDA callback ends it on another stream than it was claimed for, of which "
                      "CUDA tells nothing there",
                      "release it there without a stream, after a record_stream() of the other, or "
                      "retire() its owner");
  }
}

void slot_pool::release_at_end(claimed_slot& lease) noexcept {
  state& in = *lease.what->pool_.state_;
  bool is_refusal = false;                    // and so says what is wrong
  for (bool const is_last : {false, true}) {  // the failure may not repeat
    try {
      return release(lease);
    } catch (std::exception const& error) {
      if (lease.what == nullptr) return;  // released and reported
      if (is_last) in.core.report(error);
      is_refusal = dynamic_cast<usage_error const*>(&error) != nullptr;
    }
  }
  in.release_after_failure(lease, is_refusal);
}

void slot_pool::state::end_lease(slot& used, bool may_be_shared) noexcept {
  // capture_reuse knows only slots that graphs may hold.
  if (used.may_be_in_graphs_) {
    if (!reuse.end_lease(used, may_be_shared)) return;
    used.may_be_in_graphs_ = false;
  }
  go_home(used);
}

bool slot_pool::leave_to_graph(claimed_slot& lease) noexcept {
  if (lease.capture_id == 0 || state::was_told_after_its_capture(*lease.what)) return false;
  lease.what->pool_.state_->release_after_capture(lease);
  return true;
}

void slot_pool::require_left_to_graph(claimed_slot& lease) {
  constexpr char const* call = "lease::leave_to_graph";
  static_cast<void>(require_slot(call, lease));
  if (leave_to_graph(lease)) return;
  throw usage_error(call,
                    lease.capture_id == 0 ? "the lease was not claimed in a capture"
                                          : "the lease was told of a stream after its capture",
                    "release it");
}

void slot_pool::release_done(claimed_slot& lease) noexcept {
  state& in = *lease.what->pool_.state_;
  if (lease.capture_id != 0) return in.release_idle(lease);
  // Work before the claim may go on, if the claiming stream did not use the slot.
  if (lease.what->is_uncovered_) return in.release_or_defer(lease, lease.on);
  slot& used = *std::exchange(lease.what, nullptr);
  in.untrack(used);
  used.was_used_ = true;
  used.unrecorded_.clear();
  used.released_at_ = in.stamp();
  used.key_ = free_lists::own_list_of(used);
  in.end_lease(used);
}

void slot_pool::leak(claimed_slot& lease) noexcept {
  slot& used = *std::exchange(lease.what, nullptr);
  state& in = *used.pool_.state_;
  in.untrack(used);
  in.leak(used);
}

}  // namespace escrow::inline v0_2
