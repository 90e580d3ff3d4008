// What happens to a slot when its lease ends, and when a graph lets it go.
#include <algorithm>

#include "capture_order.hpp"
#include "escrow/core/error.hpp"
#include "escrow/detail/deleter_core.hpp"
#include "escrow/detail/device.hpp"
#include "escrow/detail/ready_event.hpp"
#include "slot_pool_state.hpp"

namespace escrow {

void slot_pool::release(slot_lease& lease, stream_ref stream, capture_info const& capture,
                        std::uint64_t id) {
  if (capture.is_none()) {
    return release_eager(lease, stream, id != 0 ? id : stream_id(stream));
  }
  if (capture.is_active()) return release_captured(lease, stream, capture);
  // What was captured will never run; the slot comes home when the graph goes, at
  // cudaStreamEndCapture.
  slot& used = *std::exchange(lease.slot_, nullptr);
  used.also_streams_.clear();
  let_go(used, lease.capture_id_, false);
}

void slot_pool::release_eager(slot_lease& lease, stream_ref stream, std::uint64_t id) {
  for (slot::used_stream const& also : lease.slot_->also_streams_) require_recordable(also);
  slot& used = *std::exchange(lease.slot_, nullptr);
  used.is_done_ = false;
  used.was_used_ = true;
  used.stream_ = id;
  used.released_at_ = state_->stamp();
  cudaError_t status = cudaSuccess;
  if (used.also_streams_.empty()) [[likely]] {
    status = cudaEventRecord(used.ready_.get(), stream.get());
    if (status != cudaSuccess) [[unlikely]]
      status = record_again(used, stream, status);
  } else {
    status = record_uses(used, stream);
  }
  if (status != cudaSuccess) [[unlikely]]
    state_->core.report(status, "cudaEventRecord");  // now: the pool may go with the slot
  // Of a capture that is over, the graph holds the slot; what was enqueued since is covered by the
  // event.
  end_lease(used, lease.capture_id_);
  check(status, "cudaEventRecord");
}

cudaError_t slot_pool::record_again(slot& used, stream_ref stream, cudaError_t first) noexcept {
  static_cast<void>(cudaGetLastError());
  // The slot is suspect from now on; a second try tells at least when it may be destroyed.
  int device = state_->options.device;
  static_cast<void>(record_use(used, used.ready_, device, stream.get()));
  used.quarantine_ = std::max(used.quarantine_, slot::quarantine::until_done);
  return first;
}

void slot_pool::require_recordable(slot::used_stream const& also) {
  require_same_thread("lease::release", also.thread, "gave it to record_stream()");
  device_scope const current(also.device);  // the null stream is the current device's
  if (usable_capture_of("lease::release", also.handle).is_none()) return;
  // An event recorded in a capture could tell nobody outside when the work is done.
  throw usage_error("lease::release", "a stream given to record_stream() is being captured",
                    "release before its capture begins, or after it has ended");
}

cudaError_t slot_pool::record_uses(slot& used, stream_ref stream) noexcept {
  int device = state_->options.device;
  cudaError_t first_error = record_use(used, used.ready_, device, stream.get());
  for (slot::used_stream const& also : used.also_streams_) {
    cudaError_t const status = record_other_use(used, also);
    if (first_error == cudaSuccess) first_error = status;
  }
  used.also_streams_.clear();
  return first_error;
}

cudaError_t slot_pool::record_other_use(slot& used, slot::used_stream const& also) noexcept {
  cudaError_t status = cudaErrorMemoryAllocation;  // for an event, or for its place
  try {
    device_scope const current(also.device);
    if (used.also_count_ == used.also_ready_.size()) {
      used.also_ready_.push_back({event_cache::take(also.device), also.device});
    }
    slot::other_event& other = used.also_ready_[used.also_count_++];
    return record_use(used, other.ready, other.device, also.handle);
  } catch (cuda_error const& error) {
    status = error.status();
  } catch (std::exception const&) {
    // No memory: as `status` says.
  }
  used.quarantine_ =
      std::max(used.quarantine_, runs_nothing_after(status) ? slot::quarantine::until_done
                                                            : slot::quarantine::for_ever);
  return status;
}

cudaError_t slot_pool::record_use(slot& used, event& ready, int& device,
                                  cudaStream_t stream) noexcept {
  int const expected_device = device;
  record_result const result = record_ready(ready, device, stream);
  switch (result.outcome) {
    case record_outcome::recorded:
      return cudaSuccess;
    case record_outcome::recorded_anew:
      // Expected where the event was one for another device; otherwise the first failure casts
      // doubt on the slot.
      if (device != expected_device) return cudaSuccess;
      used.quarantine_ = std::max(used.quarantine_, slot::quarantine::until_done);
      return result.status;
    case record_outcome::device_lost:
      used.quarantine_ = std::max(used.quarantine_, slot::quarantine::until_done);
      return result.status;
    case record_outcome::failed:
      break;
  }
  used.quarantine_ = slot::quarantine::for_ever;
  return result.status;
}

void slot_pool::release_captured(slot_lease& lease, stream_ref stream,
                                 capture_info const& capture) {
  if (lease.capture_id_ != capture.id) return release_in_foreign_capture(lease, capture);
  slot& used = *lease.slot_;
  auto const use = std::make_shared<slot::captured_use>();
  use->released_at = frontier_of(stream).nodes;
  for (slot::used_stream const& also : used.also_streams_) {
    require_same_thread("lease::release", also.thread, "gave it to record_stream()");
    device_scope const current(also.device);
    if (capture_of(also.handle).id != capture.id) {
      throw usage_error("lease::release",
                        "a stream given to record_stream() is not part of the capture any more",
                        "release before the stream leaves the capture");
    }
    merge_frontier(use->released_at, frontier_of(also.handle).nodes);
  }
  use->released_after = dependencies_of(use->released_at);
  use->claimed_at = std::move(used.claimed_at_);  // nothing may fail any more
  used.last_use_ = use;
  used.also_streams_.clear();
  lease.slot_ = nullptr;
  let_go(used, capture.id, true);
}

void slot_pool::release_in_foreign_capture(slot_lease& lease, capture_info const& capture) {
  // First, because once the slot is taken from the lease nothing may fail.
  usage_error const error("lease::release",
                          "`stream` is being captured, but the lease was claimed outside of it",
                          "claim in the capture; this slot is quarantined");
  lease.slot_->was_shared_ = true;  // the ledger may come to know the hold, and then this fails
  // Work on the slot may have been captured, so this graph has to hold it too; and work before the
  // capture may still run, which nothing can be recorded for any more.
  hold_in_graph(*lease.slot_, capture, {});
  slot& used = *std::exchange(lease.slot_, nullptr);
  used.also_streams_.clear();
  used.quarantine_ = slot::quarantine::for_ever;
  state_->core.report(error);  // now: the pool may go with the slot
  let_go(used, capture.id, false);
  throw error;
}

void slot_pool::let_go(slot& used, std::uint64_t capture_id, bool reusable) noexcept {
  if (!state_->ledger.end_lease(used, capture_id, reusable)) return;
  used.was_shared_ = false;
  go_home(used);
}

void slot_pool::end_lease(slot& used, std::uint64_t capture_id) noexcept {
  // Only what graphs may hold is in the ledger.
  if (capture_id != 0 || used.was_shared_) return let_go(used, capture_id, false);
  go_home(used);
}

void graph_hold::graph_is_gone(reclaimable& thing) noexcept {
  auto& hold = static_cast<graph_hold&>(thing);
  hold.held_.pool().graph_is_gone(hold);
}

void slot_pool::graph_is_gone(graph_hold& hold) noexcept {
  slot& held = hold.held_;
  std::uint64_t const capture_id = hold.capture_id_;
  state_->core.count_in_graphs(-1);
  if (&hold != &held.first_hold_) delete &hold;
  // Between the ledger and its bin nobody finds the slot: claims that find none look again
  // meanwhile. The reference is for afterwards, since the pool may go with the slot.
  // Relaxed: see state::looked_at; the ledger's lock orders the first.
  state_->references.fetch_add(1, std::memory_order_relaxed);
  state_->looked_at.fetch_add(1, std::memory_order_relaxed);
  if (state_->ledger.remove(held, capture_id)) {
    held.was_shared_ = false;
    held.released_at_ = state_->stamp();
    // Idle: it belongs to no stream any more, whose busy slots would hide it.
    if (held.is_done_) held.stream_ = 0;
    go_home(held);
  }
  state_->looked_at.fetch_sub(1, std::memory_order_relaxed);
  drop_reference();
}

void slot_pool::go_home(slot& idle) noexcept {
  if (idle.quarantine_ != slot::quarantine::none) return put_in_quarantine(idle, idle.quarantine_);
  put_back(idle);
}

void slot_pool::put_back(slot& idle) noexcept {
  // Once the slot is put back, the pool may go with it: who is to be told needs a reference.
  // Somebody who begins to wait just now may be missed, and looks again by himself after a moment.
  bool const is_awaited = state_->waiters.load(std::memory_order_relaxed) != 0;
  if (is_awaited) state_->references.fetch_add(1, std::memory_order_relaxed);
  if (!state_->free.put(idle)) destroy(idle);
  if (!is_awaited) return;
  state_->announce_return();
  drop_reference();
}

void slot_pool::put_back_unused(slot& looked_at) noexcept {
  // No return is announced: those who wait would look again, put back again, and never rest.
  if (!state_->free.put(looked_at)) destroy(looked_at);
}

void slot_pool::state::announce_return() noexcept {
  // Relaxed: see waiters.
  if (waiters.load(std::memory_order_relaxed) == 0) return;
  {
    std::lock_guard const lock(return_mutex);
    ++returns;
  }
  returned.notify_all();
}

std::uint64_t slot_pool::state::returns_seen() {
  std::lock_guard const lock(return_mutex);
  return returns;
}

void slot_pool::state::await_return(std::uint64_t seen, std::chrono::nanoseconds timeout) {
  std::unique_lock lock(return_mutex);
  returned.wait_for(lock, timeout, [&] { return returns != seen; });
}

}  // namespace escrow
