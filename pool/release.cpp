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
#include "escrow/internal/reference_set.hpp"
#include "slot_pool_state.hpp"

namespace escrow::inline v0_1 {

namespace {

void require_same_thread(stream_use const& use, std::string_view what_it_did) {
  if (!is_other_thread(use)) return;
  throw usage_error(
      "lease::release",
      "cudaStreamPerThread names another stream on this thread than on the one that " +
          std::string(what_it_did),
      "release on that thread; after a claim on cudaStreamPerThread, "
      "release(stream) with another stream will do, too");
}

// Whether its claiming stream still captures, so that no work on it runs yet.
bool is_in_its_capture(claimed_slot const& lease) {
  if (lease.capture_id == 0 || is_other_thread(lease.on)) return false;
  std::optional<device_scope> current;
  if (is_ambiguous(lease.on.handle)) current.emplace(lease.on.device);
  capture_info capture;
  check(query_recordable(lease.on.handle, capture), "cudaStreamGetCaptureInfo");
  return capture.is_active() && capture.id == lease.capture_id;
}

[[noreturn]] void refuse_capture(char const* call, claimed_slot const& lease) {
  throw usage_error(call,
                    lease.capture_id == 0
                        ? "`stream` is being captured, the lease was claimed outside"
                        : "`stream` is not part of the capture that the lease was claimed in",
                    "claim in the same capture as the work");
}

}  // namespace

slot& slot_pool::require_slot(char const* call, claimed_slot const& lease) {
  if (lease.what == nullptr) {
    throw usage_error(call, "the lease is empty: it was released or moved from", "claim again");
  }
  return *lease.what;
}

stream_use slot_pool::state::unasked(stream_ref stream) const {
  stream_use use = use_of(stream, 0, options.device);
  if (is_ambiguous(use.handle)) use.device = current_device();
  return use;
}

void slot_pool::release(claimed_slot& lease) {
  state& in = *require_slot("lease::release", lease).pool_.state_;
  if (is_reclaiming()) {
    if (!leave_to_graph(lease)) in.release_later(lease, lease.on);
    return;
  }
  require_same_thread(lease.on, "claimed");
  std::optional<device_scope> device;
  if (is_ambiguous(lease.on.handle)) device.emplace(in.options.device);  // the claiming stream's
  if (lease.local != nullptr && in.release_local(lease)) return;
  in.release_on(lease, lease.on, true);
}

void slot_pool::release(claimed_slot& lease, stream_ref stream, bool is_own) {
  state& in = *require_slot("lease::release", lease).pool_.state_;
  stream_use const on = in.unasked(stream);
  if (!is_own) {
    if (is_reclaiming()) {
      in.release_later(lease, on);
      return;
    }
    if (lease.local != nullptr && !is_ambiguous(on.handle) && on.handle == lease.on.handle) {
      return release(lease);
    }
  }
  in.release_on(lease, on, false);
}

void slot_pool::release_at_end(claimed_slot& lease) noexcept {
  state& in = *lease.what->pool_.state_;
  for (bool const is_last : {false, true}) {  // the failure may not repeat
    try {
      return release(lease);
    } catch (std::exception const& error) {
      if (lease.what == nullptr) return;  // released and reported
      if (is_last) in.core.report(error);
    }
  }
  in.abandon(lease);
}

void slot_pool::state::abandon(claimed_slot& lease) noexcept {
  capture_info capture;
  try {
    if (lease.local != nullptr) require_stream("lease::~lease", lease.on);
    device_scope const device(options.device);
    if (!is_other_thread(lease.on)) {
      static_cast<void>(succeeded(query_recordable(lease.on.handle, capture)));
    }
  } catch (usage_error const&) {  // the stream was destroyed
    return slot_pool::leak(lease);
  } catch (std::exception const&) {  // treat as not capturing
  }
  if (!capture.is_active()) {
    release_later(lease, lease.on);
    return;
  }
  // Its graph keeps it, and no claim of the capture gets it. Another graph could not hold it.
  if (!reuse.is_held_in(*lease.what, capture.id) || !leave_to_graph(lease)) slot_pool::leak(lease);
}

bool slot_pool::state::was_recorded_after_its_capture(slot const& leased) noexcept {
  // Outside of captures only the id of a stream is asked.
  return std::ranges::any_of(leased.unrecorded_, [](auto const& use) { return use.id != 0; });
}

// `on` now                      the slot
// -- does not capture           gets an event there
// -- captures the lease's       is free for later claims of that capture
// -- captures something else    is held by that graph, too, and has its records deferred
// -- has an invalidated capture has its records deferred
void slot_pool::state::release_on(claimed_slot& lease, stream_use on, bool is_claiming_stream) {
  capture_info capture;
  detail::capture_dependencies after;
  check(query_recordable(on.handle, capture, &after), "cudaStreamGetCaptureInfo");
  capture_frontier end;  // before another call on the stream
  if (capture.is_active()) end = capture_frontier(after);
  if (capture.is_none() && on.id == 0) on.id = stream_id(on.handle);
  bool const is_known = is_claiming_stream || (on.id != 0 && on.id == lease.on.id);
  if (!is_known && capture.status != capture_status::invalidated) {
    require_device("lease::release", on.handle, capture,
                   "release on a stream of the pool's device, and tell record_stream() of the "
                   "other");
  }
  // A lease that was recorded after its capture is in a later one of its graph, which does not
  // order that use.
  bool const is_in_its_own = capture.is_active() && capture.id == lease.capture_id &&
                             !was_recorded_after_its_capture(*lease.what);
  bool const is_deferred = !capture.is_none() && !is_in_its_own;
  if (!is_deferred) {
    for (stream_use const& also : lease.what->unrecorded_) {
      require_same_thread(also, "gave it to record_stream()");
    }
  }
  bool const is_unused_outside =
      is_deferred && capture.id != lease.capture_id && is_in_its_capture(lease);
  // Work on the slot may have been captured. Its own graph does not hold it, if it was hoisted or
  // recaptured since the claim.
  if (capture.is_active() && !reuse.is_held_in(*lease.what, capture.id)) {
    hold_in_graph(*lease.what, capture, false, {});
  }
  if (is_deferred) return release_later(lease, on, is_unused_outside);
  if (is_in_its_own) return release_captured(lease, end);
  check(release_eager(lease, on), "cudaEventRecord");
}

// Inlined, and release_eager() has a copy of `on`: with g++ 13 a claim and release on 8 threads
// takes 1.4 times as long otherwise (H100).
[[gnu::always_inline]] inline slot& slot_pool::state::take_used(claimed_slot& lease) noexcept {
  slot& used = *std::exchange(lease.what, nullptr);
  untrack(used);
  used.is_done_ = false;
  used.was_used_ = true;
  used.covered_by_.reset();
  used.released_at_ = stamp();
  return used;
}

cudaError_t slot_pool::state::release_eager(claimed_slot& lease, stream_use on) noexcept {
  slot& used = take_used(lease);
  used.key_ = on.id;
  if (!succeeded(cudaEventRecord(used.ready_.recorded.get(), on.handle))) [[unlikely]] {
    used.unrecorded_.push_back(on);
  }
  cudaError_t const status = used.unrecorded_.empty() ? cudaSuccess : record_uses(used);
  // First: once the slot is returned, the pool may be destroyed.
  record_deferred(on.handle, on.id);
  finish_release(used);
  return status;
}

void slot_pool::state::release_later(claimed_slot& lease, stream_use const& on,
                                     bool is_unused_outside) noexcept {
  slot& used = take_used(lease);
  used.key_ = free_lists::own_list_of(used);
  if (!is_unused_outside) used.unrecorded_.push_back(lease.on);  // with its id
  if (!is_same_stream(lease.on, on)) used.unrecorded_.push_back(on);
  static_cast<void>(record_uses(used));
  finish_release(used);
}

void slot_pool::state::release_captured(claimed_slot& lease, capture_frontier& end) {
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
    is_free = reuse.end_lease_in(used, lease.capture_id, end.all());
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

void slot_pool::record_stream(claimed_slot const& lease, stream_ref stream) {
  slot& used = require_slot("lease::record_stream", lease);
  state& in = *used.pool_.state_;
  capture_info const capture = usable_capture_of("lease::record_stream", stream);
  bool const is_used_after_its_capture = capture.is_none() && !is_in_its_capture(lease);
  if (capture.id != lease.capture_id && !is_used_after_its_capture) {
    refuse_capture("lease::record_stream", lease);
  }
  stream_use use = in.unasked(stream);
  if (capture.is_none()) {  // a query would invalidate a capture
    use.id = stream_id(stream);
    use.device = device_of(stream);
    in.record_deferred(stream, use.id);
  }
  std::vector<stream_use>& known = used.unrecorded_;
  auto const same =
      std::ranges::find_if(known, [&](auto const& each) { return is_same_stream(each, use); });
  if (same != known.end()) {
    if (use.id != 0) *same = use;  // perhaps recorded in the capture so far, without its id
    return;
  }
  if (known.size() + 3 > known.capacity()) known.reserve(2 * known.size() + 3);
  used.also_ready_.reserve(known.capacity());
  known.push_back(use);
}

void slot_pool::before_launch(claimed_slot const& lease, stream_ref stream) {
  slot const& used = require_slot("launch", lease);
  // Also on a known stream: it may capture since, into a graph that does not hold the slot.
  capture_info const capture = usable_capture_of("launch", stream);
  state const& in = *used.pool_.state_;
  if (capture.is_active() && !in.reuse.is_held_in(used, capture.id)) {
    refuse_capture("launch", lease);
  }
  stream_use const use = in.unasked(stream);
  auto const is_it = [&](stream_use const& known) { return is_same_stream(known, use); };
  // After its capture, its own stream's work is not that of the graph.
  bool const is_after_its_capture = capture.is_none() && lease.capture_id != 0;
  bool const is_known = is_it(lease.on) || std::ranges::any_of(used.unrecorded_, is_it);
  if (!is_known || is_after_its_capture) record_stream(lease, stream);
}

bool slot_pool::leave_to_graph(claimed_slot& lease) noexcept {
  if (lease.capture_id == 0) return false;
  if (state::was_recorded_after_its_capture(*lease.what)) return false;
  slot& used = *std::exchange(lease.what, nullptr);
  state& in = *used.pool_.state_;
  in.untrack(used);
  used.unrecorded_.clear();
  in.end_lease(used);
  return true;
}

void slot_pool::leak(claimed_slot& lease) noexcept {
  slot& used = *std::exchange(lease.what, nullptr);
  state& in = *used.pool_.state_;
  in.untrack(used);
  in.leak(used);
}

}  // namespace escrow::inline v0_1
