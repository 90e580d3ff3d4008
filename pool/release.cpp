// The end of a lease, on the right streams, whatever fails.
#include <algorithm>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "escrow/core/error.hpp"
#include "escrow/internal/deleter_core.hpp"
#include "escrow/internal/device.hpp"
#include "slot_pool_state.hpp"

namespace escrow::inline v0_1 {

namespace {

[[noreturn]] void refuse_other_thread(std::string_view what_it_did) {
  throw usage_error(
      "lease::release",
      "cudaStreamPerThread names another stream on this thread than on the one that " +
          std::string(what_it_did),
      "release on that thread; after a claim on cudaStreamPerThread, "
      "release(stream) with another stream will do, too");
}

inline void require_same_thread(stream_use const& use, std::string_view what_it_did) {
  if (is_other_thread(use)) [[unlikely]]
    refuse_other_thread(what_it_did);
}

}  // namespace

slot& slot_pool::require_slot(char const* call, claimed_slot const& lease) {
  if (lease.what == nullptr) {
    throw usage_error(call, "the lease is empty: it was released or moved from", "claim again");
  }
  return *lease.what;
}

stream_use slot_pool::state::use_without_id(stream_ref stream) const {
  stream_use use = use_of(stream, 0, options.device);
  if (is_ambiguous(use.handle)) use.device = current_device();
  return use;
}

capture_reuse::claim_state slot_pool::state::state_of(claimed_slot const& lease) const noexcept {
  return reuse.state_of(*lease.what, lease.capture_id);
}

// How a lease ends:
// -- of a capture that is over          its graph keeps the slot; streams it was told of since get
//                                       events
// -- on a deleter's worker              as release_reclaimed() says
// -- in a CUDA callback                 has its records deferred
// -- else                               as release_on() says
void slot_pool::release(claimed_slot& lease) {
  state& in = *require_slot("lease::release", lease).pool_.state_;
  capture_reuse::claim_state claim;
  if (lease.capture_id != 0) [[unlikely]] {
    claim = in.state_of(lease);
    if (claim.is_over) return in.release_after_capture(lease);
  }
  if (is_reclaiming()) return in.release_reclaimed(lease, lease.on);
  require_same_thread(lease.on, "claimed");
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
  state& in = *require_slot(call, lease).pool_.state_;
  bool const is_claiming_handle =
      stream.get() == lease.on.handle && !is_ambiguous(lease.on.handle) && lease.capture_id == 0;
  if (is_claiming_handle && (lease.uncovered_by != nullptr || is_reclaiming()))
    return release(lease);
  try {
    stream_use const on = in.use_without_id(stream);
    if (is_reclaiming()) return in.release_reclaimed(lease, on);
    in.release_on(lease, on, in.state_of(lease), false, call);
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

void slot_pool::state::release_after_failure(claimed_slot& lease, bool is_told) noexcept {
  capture_info capture;
  try {
    if (lease.uncovered_by != nullptr) require_stream("lease::~lease", lease.on);
    device_scope const device(options.device);
    if (!is_other_thread(lease.on)) {
      static_cast<void>(succeeded(query_recordable(lease.on.handle, capture)));
    }
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
  if (!state_of(lease).is_held_in(capture.id) || !leave_to_graph(lease)) slot_pool::leak(lease);
}

bool slot_pool::state::was_told_after_its_capture(slot const& leased) noexcept {
  // Outside of captures only the id of a stream is asked.
  return std::ranges::any_of(leased.unrecorded_, [](auto const& use) { return use.id != 0; });
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
  capture_info capture;
  detail::capture_dependencies after;
  check(query_recordable(on.handle, capture, &after), "cudaStreamGetCaptureInfo");
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
      if (is_in_its_own || also.id != 0) {
        require_same_thread(also, "gave it to record_stream()");
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
  if (is_in_its_own) return release_captured(lease, capture, end, is_claiming_stream);
  if (capture.is_none()) {
    check(release_eager(lease, on), "cudaEventRecord");
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

cudaError_t slot_pool::state::release_eager(claimed_slot& lease, stream_use on) noexcept {
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
    return cudaSuccess;
  }
  cudaError_t const status = record_uses(used);
  finish_release(used);
  return status;
}

void slot_pool::state::forget_captured_uses(slot& used) noexcept {
  used.end_in_group();
  std::erase_if(used.unrecorded_, [](stream_use const& use) { return use.id == 0; });
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
  finish_release(used);
}

void slot_pool::state::release_captured(claimed_slot& lease, capture_info const& of,
                                        capture_frontier& end, bool is_behind_claim) {
  slot& used = *lease.what;
  for (stream_use const& also : used.unrecorded_) {
    device_scope const current(also.device);
    capture_info capture;
    detail::capture_dependencies also_after;
    check(query_recordable(also.handle, capture, &also_after), "cudaStreamGetCaptureInfo");
    if (capture.id != lease.capture_id) {
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

}  // namespace escrow::inline v0_1
