// SPDX-License-Identifier: Apache-2.0
// What becomes of the slot of a lease that ends, whatever fails.
#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include "escrow/core/error.hpp"
#include "escrow/internal/deleter_core.hpp"
#include "escrow/internal/device.hpp"
#include "slot_pool_state.hpp"

namespace escrow::inline v0_2 {

namespace {

// Its graph has them.
void forget_captured_uses(slot& used) noexcept {
  used.end_in_group();
  std::erase_if(used.unrecorded_, [](stream_use const& use) { return use.id == 0; });
}

}  // namespace

void slot_pool::state::refuse_other_thread(slot const& leased, char const* what_it_did) {
  throw usage_error(
      "lease::release",
      "a lease of \"" + leased.of_.label + "\"" + leased.claim_text() +
          ": cudaStreamPerThread names another stream on this thread than on the one that " +
          what_it_did,
      "release on that thread; after a claim on cudaStreamPerThread, "
      "release(stream) with another stream will do, too");
}

// `on` now                      the slot
// -- does not capture           gets an event there
// -- captures the lease's       is free for later claims of that capture
// -- captures something else    is held by that graph, too, and has its records deferred. The
//                               claiming stream of a lease of a capture: as release_after_capture()
// -- has an invalidated capture has its records deferred
void slot_pool::state::release_on(claimed_slot& lease, stream_use on,
                                  capture_reuse::claim_state const& claim, bool is_claiming_stream,
                                  char const* call) {
  if (lease.what->place_ != nullptr && release_in_run(lease, on)) return;
  detail::capture_dependencies after;
  capture_info const capture = recordable_capture_of(on.handle, &after);
  capture_frontier end;  // before another call on the stream
  if (capture.is_active()) end = capture_frontier(after);
  if (capture.is_none() && on.id == 0) on.id = stream_id(on.handle);
  bool const is_known = is_claiming_stream || (on.id != 0 && on.id == lease.on.id);
  if (!is_known && capture.status != capture_status::invalidated) {
    require_device(call, on.handle, capture,
                   "release on a stream of the pool's device, and tell record_stream() of the "
                   "other");
  }
  bool const is_of_capture = lease.capture_id != 0;
  // A lease that was told of a stream after its capture is in a later one of its graph, which does
  // not order that use.
  bool const is_in_its_own = capture.is_active() && capture.id == lease.capture_id &&
                             !was_told_after_its_capture(*lease.what);
  if (is_in_its_own || capture.is_none()) {
    for (stream_use const& also : lease.what->unrecorded_) {
      if ((is_in_its_own || also.id != 0) && is_other_thread(also)) {
        refuse_other_thread(*lease.what, "gave it to record_stream()");
      }
    }
  }
  bool const is_over = is_of_capture && is_claiming_stream && capture.id != lease.capture_id;
  if (is_over && !capture.is_none()) return release_after_capture(lease);
  // Work on the slot may have been captured. Its own graph does not hold it, if it was hoisted or
  // recaptured since the claim.
  if (capture.is_active() && !claim.is_held_in(capture.id)) {
    hold_in_graph(*lease.what, capture, false, {});
  }
  // The lease may not have been used: what was before its claim is not behind `on` then.
  slot const& used = *lease.what;
  if (!is_known && capture.is_none() && !is_of_capture && !used.is_done_) {
    if (used.is_uncovered_ || used.place_ != nullptr) return release_or_defer(lease, on);
    check(cudaStreamWaitEvent(on.handle, used.ready(), 0), "cudaStreamWaitEvent");
    for (cached_event const& also : used.also_ready_) {
      check(cudaStreamWaitEvent(on.handle, also.recorded.get(), 0), "cudaStreamWaitEvent");
    }
  }
  if (is_in_its_own) {
    // A stream's later work in a capture comes after its earlier work.
    bool const is_behind_claim = is_claiming_stream || is_same_stream(lease.on, on);
    return release_captured(lease, capture, end, is_behind_claim);
  }
  if (capture.is_none()) {
    auto const [status, failed] = release_eager(lease, on);
    check(status, failed);
  } else {
    release_or_defer(lease, on);
  }
}

// Inlined, and release_eager() has a copy of `on`: with g++ 13 a claim and release on 8 threads
// takes 1.4 times as long otherwise (H100).
[[gnu::always_inline]] inline slot& slot_pool::state::take_used(claimed_slot& lease) noexcept {
  slot& used = *std::exchange(lease.what, nullptr);
  untrack(used);
  if (used.place_ != nullptr) [[unlikely]]
    used.end_in_group();
  used.is_done_ = false;
  size_class::end_uncovered(used);
  used.was_used_ = true;
  used.covered_by_.reset();
  if (!used.also_ready_.empty()) [[unlikely]]
    used.also_ready_.clear();  // the claiming stream waited for them
  used.released_at_ = stamp();
  return used;
}

record_status slot_pool::state::release_eager(claimed_slot& lease, stream_use on) noexcept {
  bool const was_captured = lease.capture_id != 0;
  slot& used = take_used(lease);
  used.key_ = on.id;
  if (was_captured) [[unlikely]]
    forget_captured_uses(used);
  if (!succeeded(cudaEventRecord(used.ready_.recorded.get(), on.handle))) [[unlikely]] {
    used.unrecorded_.push_back(on);
  }
  // First: once the slot is returned, the pool may be destroyed.
  record_deferred(on);
  if (used.unrecorded_.empty()) [[likely]] {
    end_lease(used);
    return {};
  }
  record_status const recorded = record_uses(used);
  wait_in_scope(used);
  finish_release(used);
  return recorded;
}

// On the stream of the sharing_group::run() that it was claimed in: the call's end records an event
// for all.
bool slot_pool::state::release_in_run(claimed_slot& lease, stream_use on) noexcept {
  slot const& leased = *lease.what;
  if (lease.capture_id != 0 || !leased.unrecorded_.empty()) return false;
  group_scope const* const scope = group_scope::of(leased.place_->graph);
  if (scope == nullptr || scope->stream != on.handle || on.device != options.device) {
    return false;
  }
  if (!captures_nothing(on.handle)) return false;
  on.id = scope->stream_id;
  slot& used = take_used(lease);
  used.key_ = on.id;
  record_deferred(on);
  end_lease(used);
  return true;
}

// Records on the claiming stream and on `on`, or defers that.
void slot_pool::state::release_or_defer(claimed_slot& lease, stream_use const& on) noexcept {
  bool const is_claiming_stream = is_same_stream(lease.on, on);
  if (lease.capture_id != 0 && is_claiming_stream) return release_after_capture(lease);
  bool const was_captured = lease.capture_id != 0;
  stream_use const claimed_on = lease.on;
  slot& used = take_used(lease);
  used.key_ = free_lists::own_list_of(used);
  if (was_captured) {
    forget_captured_uses(used);
  } else {
    used.unrecorded_.push_back(claimed_on);  // with its id
  }
  auto const is_it = [&](stream_use const& told) { return is_same_stream(told, on); };
  if (!is_claiming_stream && std::ranges::none_of(used.unrecorded_, is_it)) {
    used.unrecorded_.push_back(on);
  }
  static_cast<void>(record_uses(used));
  wait_in_scope(used);
  finish_release(used);
}

void slot_pool::state::release_after_capture(claimed_slot& lease) noexcept {
  forget_captured_uses(*lease.what);
  if (lease.what->unrecorded_.empty()) return release_idle(lease);
  slot& used = take_used(lease);
  used.key_ = free_lists::own_list_of(used);
  static_cast<void>(record_uses(used));
  finish_release(used);
}

void slot_pool::state::release_idle(claimed_slot& lease) noexcept {
  slot& used = take_used(lease);
  used.is_done_ = true;
  used.unrecorded_.clear();
  end_lease(used);
}

// Calls nothing with a stream.
//     the work on the slot                             the slot
// -- was over when the owner's destruction began       is idle
// -- is before the claiming stream's last record       waits for that
// -- else                                              has its records deferred
void slot_pool::state::release_reclaimed(claimed_slot& lease, stream_use const& on) noexcept {
  slot& used = *lease.what;
  if (lease.capture_id != 0) return release_or_defer(lease, on);
  retirement_cover const cover = cover_of_reclaim();
  // Relaxed: see use_clock.
  std::uint64_t const accessed = lease.resource->accessed.load(std::memory_order_relaxed);
  bool const may_cover = !used.may_be_in_graphs_ && accessed < cover.number;
  auto const is_covered = [&](stream_use const& use) {
    return use.id != 0 && use.id == cover.stream;
  };
  bool const is_on_claiming_stream = is_same_stream(lease.on, on);
  if (may_cover && is_covered(lease.on) && is_on_claiming_stream && used.unrecorded_.empty()) {
    return release_idle(lease);
  }
  if (accessed < used.recorded_at_ && is_on_claiming_stream && used.unrecorded_.empty()) {
    slot& recorded = take_used(lease);
    recorded.key_ = free_lists::own_list_of(recorded);
    return finish_release(recorded);
  }
  release_or_defer(lease, on);
}

void slot_pool::state::release_captured(claimed_slot& lease, capture_info const& of,
                                        capture_frontier& end, bool is_behind_claim) {
  slot& used = *lease.what;
  for (stream_use const& also : used.unrecorded_) {
    device_scope const current(also.device);
    detail::capture_dependencies also_after;
    if (recordable_capture_of(also.handle, &also_after).id != lease.capture_id) {
      throw usage_error("lease::release",
                        "a stream given to record_stream() is not part of the capture any more",
                        "release before the stream leaves the capture");
    }
    end.merge(capture_frontier(also_after));
  }
  used.released_at_ = stamp();
  untrack(used);  // before the slot may have a new lease
  bool is_free = false;
  try {
    is_free = reuse.end_lease_in(used, of, end.all(), is_behind_claim);
  } catch (...) {
    track(used);
    throw;
  }
  lease.what = nullptr;  // the slot may already have a new lease
  if (!is_free) return;
  used.may_be_in_graphs_ = false;
  go_home(used);
}

void slot_pool::state::release_after_failure(claimed_slot& lease, bool is_told) noexcept {
  capture_info capture;
  try {
    if (lease.capture_id == 0) require_stream("lease::~lease", lease.on, lease.what);
    device_scope const device(options.device);
    if (!is_other_thread(lease.on)) capture = recordable_capture_of(lease.on.handle);
  } catch (usage_error const& error) {  // the stream was destroyed
    if (!is_told) core.report(error);
    return slot_pool::leak(lease);
  } catch (std::exception const&) {  // treat as not capturing
  }
  if (!capture.is_active()) {
    release_or_defer(lease, lease.on);
    return;
  }
  // Its graph keeps it, and no claim of the capture gets it. Another graph could not hold it.
  if (!reuse.state_of(lease).is_held_in(capture.id) || !leave_to_graph(lease))
    slot_pool::leak(lease);
}

bool slot_pool::state::was_told_after_its_capture(slot const& leased) noexcept {
  // Outside of captures only the id of a stream is asked.
  return std::ranges::any_of(leased.unrecorded_, [](auto const& use) { return use.id != 0; });
}

}  // namespace escrow::inline v0_2
