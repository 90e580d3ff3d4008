// What happens to a slot when its lease ends, on the right streams, whatever fails.
#include <algorithm>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "escrow/core/after_fault.hpp"
#include "escrow/core/cuda_error.hpp"
#include "escrow/core/device_scope.hpp"
#include "escrow/core/event_cache.hpp"
#include "escrow/core/ready_event.hpp"
#include "escrow/core/retry_cleanup.hpp"
#include "escrow/core/usage_error.hpp"
#include "escrow/deleter/release_hub.hpp"
#include "slot_pool_state.hpp"

namespace escrow {

namespace {

bool is_other_thread(stream_use const& use) noexcept {
  return use.thread != 0 && use.thread != thread_of(cudaStreamPerThread);
}

void require_same_thread(stream_use const& use, std::string_view what_it_did) {
  if (!is_other_thread(use)) return;
  throw usage_error(
      "lease::release",
      "cudaStreamPerThread names another stream on this thread than on the one that " +
          std::string(what_it_did),
      "release on that thread; after a claim on cudaStreamPerThread, "
      "release(stream) with another stream will do, too");
}

[[noreturn]] void refuse_capture(char const* call, claimed_slot const& lease) {
  throw usage_error(call,
                    lease.capture_id == 0
                        ? "`stream` is being captured, the lease was claimed outside"
                        : "`stream` is not part of the capture that the lease was claimed in",
                    "claim in the same capture as the work");
}

// A bound of the ids of all streams that there are: streams made later have larger ones (measured:
// CUDA counts). 0 if it cannot be had. Capture-safe.
std::uint64_t bound_of_stream_ids(int device) noexcept {
  cudaStream_t made = nullptr;
  try {
    device_scope const current(device);
    check(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    std::uint64_t const id = stream_id(made);
    retry_cleanup([made] { return cudaStreamDestroy(made); });
    return id;
  } catch (std::exception const&) {
    if (made != nullptr) retry_cleanup([made] { return cudaStreamDestroy(made); });
    return 0;
  }
}

// For a stream that CUDA did not know just now.
bool is_destroyed(stream_use const& use) noexcept {
  unsigned long long id = 0;
  cudaError_t const status = cudaStreamGetId(use.handle, &id);
  if (succeeded(status)) return use.id != 0 && id != use.id;
  return status == cudaErrorInvalidResourceHandle;
}

bool is_legacy(cudaStream_t stream) noexcept {
  return stream == nullptr || stream == cudaStreamLegacy;
}

// Whether a blocking stream is being captured meanwhile.
bool is_blocked_legacy(cudaStream_t stream, cudaError_t query_status) noexcept {
  return query_status == cudaErrorStreamCaptureImplicit && is_legacy(stream);
}

// Whether `stream`, of that id, is the stream of `use`, on the calling thread.
bool is_stream_of(stream_use const& use, stream_ref stream, std::uint64_t id) {
  if (use.id != 0) return use.id == id;
  if (use.handle == cudaStreamPerThread) {
    return use.thread == thread_of(stream) && use.device == current_device();
  }
  if (is_legacy(use.handle)) return is_legacy(stream.get()) && use.device == current_device();
  // A stream that was made with the handle of one that was destroyed has a larger id.
  return use.handle == stream.get() && id < use.id_below;
}

}  // namespace

slot& slot_pool::require_slot(char const* call, claimed_slot const& lease) {
  if (lease.what == nullptr) {
    throw usage_error(call, "the lease is empty: it was released or moved from", "claim again");
  }
  return *lease.what;
}

void slot_pool::release(claimed_slot& lease) {
  state& in = *require_slot("lease::release", lease).pool_.state_;
  require_same_thread({.handle = lease.stream, .id = 0, .thread = lease.thread, .device = 0},
                      "claimed");
  std::optional<device_scope> device;
  if (is_ambiguous(lease.stream)) device.emplace(in.options.device);  // where the claim was made
  in.release_on(lease, lease.stream, lease.stream_id);
}

void slot_pool::release(claimed_slot& lease, stream_ref stream) {
  state& in = *require_slot("lease::release", lease).pool_.state_;
  capture_info capture;
  cudaError_t const status = detail::query_capture(stream.get(), capture);
  if (succeeded(status) && capture.status != capture_status::invalidated) {
    in.require_device("lease::release", stream, capture,
                      "release on a stream of the pool's device, and tell record_stream() of the "
                      "other");
  }
  in.release_on(lease, stream, 0);
}

void slot_pool::release_at_end(claimed_slot& lease) noexcept {
  state& in = *lease.what->pool_.state_;
  constexpr int attempts_max = 2;  // a failed call may be the only one
  for (int attempt = 1; lease.what != nullptr; ++attempt) {
    try {
      return release(lease);
    } catch (std::exception const& error) {
      if (lease.what == nullptr) return;  // released and reported
      if (attempt < attempts_max) continue;
      in.hub.report(error);
      return in.abandon(lease);
    }
  }
}

void slot_pool::state::abandon(claimed_slot& lease) noexcept {
  stream_use const own{.handle = lease.stream,
                       .id = lease.stream_id,
                       .thread = lease.thread,
                       .device = options.device};
  if (is_other_thread(own)) return defer(lease, own);
  capture_info capture;
  try {
    device_scope const device(options.device);
    capture = capture_of(lease.stream);
  } catch (cuda_error const& error) {
    if (!runs_nothing_after(error.status())) return defer(lease, own);
    lease.what->unrecorded_.clear();
    return end_lease(*std::exchange(lease.what, nullptr));
  } catch (std::exception const&) {
    return defer(lease, own);
  }
  if (!capture.is_active()) return defer(lease, own);
  slot& used = *std::exchange(lease.what, nullptr);
  used.unrecorded_.clear();
  // Its graph keeps it, and no claim of the capture gets it. Another graph could not be made to.
  capture.id == lease.capture_id ? end_lease(used) : leak(used);
}

void slot_pool::state::release_on(claimed_slot& lease, stream_ref stream, std::uint64_t id) {
  capture_info capture;
  cudaError_t const status = detail::query_capture(stream.get(), capture);
  bool const is_blocked = is_blocked_legacy(stream.get(), status);
  if (is_blocked) {
    static_cast<void>(cudaGetLastError());
  } else {
    check(status, "cudaStreamGetCaptureInfo");
  }
  if (capture.is_none() && !is_blocked) {
    return release_eager(lease, stream, id != 0 ? id : stream_id(stream));
  }
  if (capture.is_active()) {
    if (capture.id == lease.capture_id) return release_captured(lease, stream, capture);
    // Work on the slot may have been captured: this graph has to hold it, too.
    hold_in_graph(*lease.what, capture, {});
  }
  // Work from before this capture may still run, and nothing can be recorded now.
  defer(lease, {.handle = stream.get(),
                .id = id,
                .thread = thread_of(stream),
                .device = is_ambiguous(stream.get()) ? current_device() : options.device});
}

void slot_pool::state::release_eager(claimed_slot& lease, stream_ref stream, std::uint64_t id) {
  for (stream_use const& also : lease.what->unrecorded_) {
    require_same_thread(also, "gave it to record_stream()");
  }
  slot& used = *std::exchange(lease.what, nullptr);
  used.is_done_ = false;
  used.was_used_ = true;
  used.key_ = id;
  used.released_at_ = stamp();
  cudaError_t status = cudaEventRecord(used.ready_.get(), stream.get());
  if (status == cudaSuccess && used.unrecorded_.empty()) [[likely]] {
    // Before the slot is back, with which the pool may go.
    if (deferred_count.load(std::memory_order_relaxed) != 0) [[unlikely]]
      record_deferred(stream, id);
    return end_lease(used);
  }
  if (status != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    stream_use const own{
        .handle = stream.get(), .id = id, .thread = thread_of(stream), .device = options.device};
    used.unrecorded_.push_back(own);
  }
  status = record_uses(used, [](stream_use const&) { return true; });
  if (deferred_count.load(std::memory_order_relaxed) != 0) record_deferred(stream, id);
  if (status != cudaSuccess) hub.report(status, "cudaEventRecord");  // now: see above
  finish_release(used);
  check(status, "cudaEventRecord");
}

void slot_pool::state::release_captured(claimed_slot& lease, stream_ref stream,
                                        capture_info const& capture) {
  slot& used = *lease.what;
  capture_frontier end = frontier_of(stream);
  for (stream_use const& also : used.unrecorded_) {
    require_same_thread(also, "gave it to record_stream()");
    device_scope const current(also.device);
    if (capture_of(also.handle).id != capture.id) {
      throw usage_error("lease::release",
                        "a stream given to record_stream() is not part of the capture any more",
                        "release before the stream leaves the capture");
    }
    end.merge(frontier_of(also.handle));
  }
  used.released_edges_ = dependencies_of(end.nodes);
  used.released_after_ = std::move(end.nodes);
  used.released_at_ = stamp();
  bool const is_free = reuse.end_lease_in(used, capture.id);  // nothing may fail any more
  used.unrecorded_.clear();
  lease.what = nullptr;
  if (!is_free) return;
  used.may_be_in_graphs_ = false;
  go_home(used);
}

void slot_pool::state::defer(claimed_slot& lease, stream_use const& use) noexcept {
  slot& used = *std::exchange(lease.what, nullptr);
  used.is_done_ = false;
  used.was_used_ = true;
  used.released_at_ = stamp();
  used.key_ = free_lists::own_list_of(used);
  used.unrecorded_.push_back(use);  // there is room for it: see record_stream()
  stream_use const& own = used.unrecorded_.back();
  static_cast<void>(record_uses(used, [&own](stream_use const& each) { return &each != &own; }));
  finish_release(used);
}

template <class Filter>
cudaError_t slot_pool::state::record_uses(slot& used, Filter may_record) noexcept {
  cudaError_t first_error = cudaSuccess;
  // Whether no work of that stream is uncovered any more.
  auto const record = [&](stream_use const& use) {
    cudaError_t status = cudaSuccess;
    try {
      if (is_other_thread(use)) return false;
      device_scope const current(use.device);  // the null stream is the current device's
      capture_info capture;
      status = detail::query_capture(use.handle, capture);
      if (!succeeded(status) || !capture.is_none()) {
        if (status == cudaSuccess || is_blocked_legacy(use.handle, status)) return false;
      } else if (use.id != 0 && stream_id(use.handle) != use.id) {
        status = cudaErrorInvalidResourceHandle;
      } else {
        if (used.also_count_ == used.also_ready_.size()) {
          used.also_ready_.push_back({event_cache::take(use.device), use.device});
        }
        slot::other_event& other = used.also_ready_[used.also_count_];
        record_result const result = record_ready(other.ready, other.device, use.handle);
        if (result.outcome == record_outcome::recorded ||
            result.outcome == record_outcome::recorded_anew) {
          ++used.also_count_;
          return true;
        }
        status = result.status;
      }
    } catch (cuda_error const& error) {
      status = error.status();
    } catch (std::exception const&) {
      status = cudaErrorMemoryAllocation;
    }
    if (first_error == cudaSuccess) first_error = status;
    if (status == cudaErrorInvalidResourceHandle && is_destroyed(use)) used.is_lost_ = true;
    return status != cudaSuccess && runs_nothing_after(status);
  };
  std::vector<stream_use>& uses = used.unrecorded_;
  uses.erase(std::remove_if(uses.begin(), uses.end(),
                            [&](stream_use const& use) { return may_record(use) && record(use); }),
             uses.end());
  return first_error;
}

void slot_pool::state::finish_release(slot& used) noexcept {
  if (used.is_lost_) return leak(used);
  if (used.unrecorded_.empty()) return end_lease(used);
  std::uint64_t bound = 0;
  for (stream_use& each : used.unrecorded_) {
    if (each.id != 0 || each.id_below != 0 || is_ambiguous(each.handle)) continue;
    if (bound == 0) bound = bound_of_stream_ids(each.device);
    each.id_below = bound;
  }
  {
    std::lock_guard const lock(deferred_mutex);
    if (!deferred_is_closed) {
      used.newer_ = std::exchange(deferred, &used);
      deferred_count.fetch_add(1, std::memory_order_relaxed);
      return;
    }
  }
  leak(used);  // the pool has ended: no call gives it a stream any more
}

void slot_pool::state::record_deferred(stream_ref stream, std::uint64_t id) noexcept {
  auto const is_here = [&](stream_use const& use) {
    try {
      return is_stream_of(use, stream, id);
    } catch (std::exception const&) {
      return false;
    }
  };
  slot* found = nullptr;
  {
    std::lock_guard const lock(deferred_mutex);
    for (slot** at = &deferred; *at != nullptr;) {
      slot& each = **at;
      if (std::ranges::none_of(each.unrecorded_, is_here)) {
        at = &each.newer_;
        continue;
      }
      *at = std::exchange(each.newer_, found);
      found = &each;
      deferred_count.fetch_sub(1, std::memory_order_relaxed);
    }
  }
  while (found != nullptr) {
    slot& each = *std::exchange(found, found->newer_);
    each.newer_ = nullptr;
    bool const is_of_pools_device = std::ranges::any_of(
        each.unrecorded_,
        [&](stream_use const& use) { return use.device == options.device && is_here(use); });
    if (is_of_pools_device) each.key_ = id;  // its newest now
    static_cast<void>(record_uses(each, is_here));
    finish_release(each);
  }
}

void slot_pool::state::end_lease(slot& used) noexcept {
  // Only what graphs may hold is known there.
  if (used.may_be_in_graphs_) {
    if (!reuse.end_lease(used)) return;
    used.may_be_in_graphs_ = false;
  }
  go_home(used);
}

void slot_pool::state::go_home(slot& idle) noexcept {
  // Once the slot is put back, the pool may end with it: what is announced then needs a reference.
  // A thread that begins to wait just now may be missed, and looks again after a moment.
  bool const is_awaited = waiters.load(std::memory_order_relaxed) != 0;
  if (is_awaited) references.fetch_add(1, std::memory_order_relaxed);
  if (!free.put(idle)) destroy(idle);
  if (!is_awaited) return;
  announce_return();
  drop_reference();
}

void slot_pool::state::put_back(slot& unused) noexcept {
  // It is out of its stream's order.
  unused.key_ = unused.is_done_ ? free_lists::idle : free_lists::own_list_of(unused);
  if (!free.put(unused)) destroy(unused);
}

void slot_pool::record_stream(claimed_slot const& lease, stream_ref stream) {
  slot& used = require_slot("lease::record_stream", lease);
  capture_info const capture = usable_capture_of("lease::record_stream", stream);
  if (capture.id != lease.capture_id) refuse_capture("lease::record_stream", lease);
  // Asking a capturing stream for its device or id would invalidate the capture.
  bool const is_eager = capture.is_none();
  stream_use const use{.handle = stream.get(),
                       .id = is_eager ? stream_id(stream) : 0,
                       .thread = thread_of(stream),
                       .device = is_eager                     ? device_of(stream)
                                 : is_ambiguous(stream.get()) ? current_device()
                                                              : used.pool_.device()};
  state& in = *used.pool_.state_;
  // Relaxed: see deferred_count.
  if (is_eager && in.deferred_count.load(std::memory_order_relaxed) != 0) {
    in.record_deferred(stream, use.id);
  }
  auto const is_same = [&use](stream_use const& known) {
    if (use.id != 0 || known.id != 0) return use.id == known.id;
    return use.handle == known.handle && use.thread == known.thread && use.device == known.device;
  };
  if (std::ranges::any_of(used.unrecorded_, is_same)) return;
  // And room for the lease's own stream, so that its end never allocates.
  if (used.unrecorded_.size() + 2 > used.unrecorded_.capacity()) {
    used.unrecorded_.reserve(2 * used.unrecorded_.size() + 2);
  }
  used.unrecorded_.push_back(use);
}

void slot_pool::before_launch(claimed_slot const& lease, stream_ref stream) {
  slot const& used = require_slot("launch", lease);
  // Also where the stream is known: it may have begun to capture since, and its graph does not hold
  // the slot.
  capture_info const capture = usable_capture_of("launch", stream);
  if (capture.is_active() && capture.id != lease.capture_id) refuse_capture("launch", lease);
  auto const is_same = [stream](cudaStream_t handle, std::uint64_t thread, int device) {
    return handle == stream.get() && thread == thread_of(stream) &&
           (!is_ambiguous(handle) || device == current_device());
  };
  if (is_same(lease.stream, lease.thread, used.pool_.device())) return;
  for (stream_use const& also : used.unrecorded_) {
    if (is_same(also.handle, also.thread, also.device)) return;
  }
  record_stream(lease, stream);
}

slot_share slot_pool::share_with_node(claimed_slot const& lease) {
  slot& used = require_slot("node::launch", lease);
  return used.pool_.state_->share(used);
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
