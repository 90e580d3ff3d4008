// SPDX-License-Identifier: Apache-2.0
// Uses of leases: on other streams than they were claimed for, and in captures.
#include <algorithm>
#include <chrono>
#include <optional>

#include "escrow/core/error.hpp"
#include "escrow/core/event.hpp"
#include "escrow/internal/device.hpp"
#include "slot_pool_state.hpp"

namespace escrow::inline v0_2 {

namespace {

// Whether its claiming stream still captures, so that no work on it runs yet.
bool is_in_its_capture(claimed_slot const& lease) {
  if (lease.capture_id == 0 || is_other_thread(lease.on)) return false;
  std::optional<device_scope> current;
  if (is_ambiguous(lease.on.handle)) current.emplace(lease.on.device);
  capture_info const capture = recordable_capture_of(lease.on.handle);
  return capture.is_active() && capture.id == lease.capture_id;
}

[[noreturn]] void refuse_capture(char const* call) {
  throw usage_error(call, "`stream` is not part of the capture that the lease was claimed in",
                    "fork `stream` into that capture, or claim in the capture of the work");
}

// As record(); it covers all work on the slot so far but that on streams that were told.
cudaError_t record_claiming_stream(claimed_slot const& lease) noexcept {
  slot& used = *lease.what;
  cudaError_t const status = record(lease.on, used.ready_, false).status;
  if (status != cudaSuccess) return status;
  // It is behind what the claiming stream waited for.
  used.covered_by_.reset();
  used.also_ready_.clear();
  used.is_done_ = false;
  size_class::end_uncovered(used);
  return status;
}

// Whether earlier users of the resource may still run; the slot's events are behind them. If it was
// claimed from its own stream's slots that have none, that stream is recorded now.
bool has_earlier_users(char const* call, claimed_slot const& lease) {
  if (lease.capture_id != 0 || lease.what->is_done_) return false;
  // Those of a group_scope's memory are behind its stream.
  if (!lease.what->is_uncovered_ && lease.what->place_ == nullptr) return true;
  cudaError_t const status = record_claiming_stream(lease);
  if (status == not_now) {
    throw usage_error(call,
                      "the claiming stream, on which the resource was used before without an "
                      "event, cannot be recorded on: it captures, or is another thread's",
                      "call it before the capture begins");
  }
  check(status, "cudaEventRecord");
  return true;
}

// A capture cannot wait for eager work, so the host does.
void wait_for_earlier_users(char const* call, claimed_slot const& lease,
                            std::chrono::nanoseconds wait_max) {
  if (!has_earlier_users(call, lease)) return;
  slot& used = *lease.what;
  relaxed_capture_scope const relaxed;  // otherwise a query could invalidate a capture
  auto const is_done = [](cached_event const& also) {
    return event_ref(also.recorded.get()).is_done();
  };
  auto const are_done = [&] {
    return event_ref(used.ready()).is_done() && std::ranges::all_of(used.also_ready_, is_done);
  };
  for (host_wait wait; !are_done();) {
    if (wait.go_on(wait_max)) continue;
    throw usage_error(
        call,
        "earlier work still uses the resource, which a capture cannot wait for, after "
        "pool_options::capture_wait_max",
        "wait for that work, or claim in the capture");
  }
  used.is_done_ = true;
}

// The next work on `stream`, which does not capture, comes after the earlier users of the resource,
// for whose events the claiming stream waited at the claim.
void order_after_earlier_users(char const* call, claimed_slot const& lease, stream_ref stream) {
  slot& used = *lease.what;
  if (!has_earlier_users(call, lease)) return;
  check(cudaStreamWaitEvent(stream.get(), used.ready(), 0), "cudaStreamWaitEvent");
  for (cached_event const& also : used.also_ready_) {
    check(cudaStreamWaitEvent(stream.get(), also.recorded.get(), 0), "cudaStreamWaitEvent");
  }
}

// The group's next launch overwrites what was claimed in its run().
void refuse_of_scope(char const* call, claimed_slot const& lease) {
  if (lease.what->place_ == nullptr || lease.capture_id != 0) return;
  throw usage_error(call, "the lease is of sharing_group::run(), and a graph would keep it",
                    "claim in the capture, or by claim_kept");
}

}  // namespace

void slot_pool::state::use_in_capture(char const* call, claimed_slot const& lease,
                                      capture_info const& capture) {
  slot& used = *lease.what;
  if (lease.capture_id != capture.id && !reuse.state_of(lease).is_over &&
      is_in_its_capture(lease)) {
    refuse_capture(call);
  }
  refuse_of_scope(call, lease);
  // From the back: most often it is the last one.
  auto const is_kept = [&](std::uint64_t id) { return id == capture.id; };
  if (std::any_of(used.kept_in_.rbegin(), used.kept_in_.rend(), is_kept)) return;
  used.kept_in_.reserve(used.kept_in_.size() + 1);
  wait_for_earlier_users(call, lease, options.capture_wait_max);
  hold_in_graph(used, capture, false, {});
  used.kept_in_.push_back(capture.id);
}

void slot_pool::record_stream(claimed_slot const& lease, stream_ref stream, char const* call) {
  slot& used = require_slot(call, lease);
  state& in = *used.pool_.state_;
  in.note_use(used, environment::lease_event::told);
  capture_info const capture = usable_capture_of(call, stream);
  auto const claim = in.reuse.state_of(lease);
  if (capture.is_active() && !claim.is_held_in(capture.id)) {
    return in.use_in_capture(call, lease, capture);
  }
  if (capture.is_none() && !claim.is_over && is_in_its_capture(lease)) refuse_capture(call);
  stream_use use = in.use_without_id(stream);
  if (capture.is_none()) {  // a query would invalidate a capture
    use.id = stream_id(stream);
    use.device = device_of(stream);
    in.record_deferred(use);
    if (lease.capture_id == 0 && is_same_stream(lease.on, use)) return;
  }
  auto& known = used.unrecorded_;
  auto const same =
      std::ranges::find_if(known, [&](auto const& each) { return is_same_stream(each, use); });
  if (same != known.end()) {
    if (use.id != 0) *same = use;  // perhaps told of in the capture so far, without its id
    return;
  }
  if (known.size() + 3 > known.capacity()) known.reserve(2 * known.size() + 3);
  used.also_ready_.reserve(known.capacity());
  if (capture.is_none()) {
    order_after_earlier_users(call, lease, stream);
  } else {
    capture_reuse::order_after_release(call, used, capture.graph, stream);
  }
  known.push_back(use);
}

void slot_pool::before_launch(claimed_slot const& lease, stream_ref stream, char const* call) {
  slot const& used = require_slot(call, lease);
  // Also on a known stream: it may capture since, into a graph that does not hold the slot.
  capture_info const capture = usable_capture_of(call, stream);
  state& in = *used.pool_.state_;
  in.note_use(used, environment::lease_event::given);
  if (capture.is_active() && !in.reuse.state_of(lease).is_held_in(capture.id)) {
    return in.use_in_capture(call, lease, capture);
  }
  stream_use const use = in.use_without_id(stream);
  auto const is_it = [&](stream_use const& known) { return is_same_stream(known, use); };
  // After its capture, its own stream's work is not that of the graph.
  bool const is_after_its_capture = capture.is_none() && lease.capture_id != 0;
  bool const is_known = is_it(lease.on) || std::ranges::any_of(used.unrecorded_, is_it);
  if (!is_known || is_after_its_capture) record_stream(lease, stream, call);
}

// The caller gives the lease to the graph, and uses it no more without an access. So its end waits
// for no more than the claiming stream's work so far, if that can be recorded. Of a lease that the
// caller keeps that is not known: it may use the resource's address later.
void slot_pool::before_retire(claimed_slot const& lease, stream_ref stream) {
  before_launch(lease, stream, "deleter::retire");
  if (lease.capture_id != 0) return;
  slot& used = *lease.what;
  std::uint64_t const number = use_clock::advance(lease.on.id);
  cudaError_t const status = record_claiming_stream(lease);
  used.recorded_at_ = status == cudaSuccess ? number : 0;
}

slot_share slot_pool::share_with_node(claimed_slot const& lease) {
  slot& used = require_slot("lease::share_with_node", lease);
  refuse_of_scope("lease::share_with_node", lease);
  // Relaxed: ids only need to be unique.
  static std::atomic<std::uint64_t> next{capture_reuse::first_share_id};
  std::uint64_t const id = next.fetch_add(1, std::memory_order_relaxed);
  return slot_share(used.pool_.state_->make_hold(used, id, false, used.note_.where));
}

}  // namespace escrow::inline v0_2
