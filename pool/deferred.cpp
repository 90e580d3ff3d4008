// Slots that wait for a record on a stream on which nothing can be recorded now.
#include <algorithm>
#include <exception>
#include <mutex>
#include <utility>

#include "escrow/core/error.hpp"
#include "escrow/detail/device.hpp"
#include "escrow/detail/ready_event.hpp"
#include "escrow/detail/retry_cleanup.hpp"
#include "slot_pool_state.hpp"

namespace escrow {

namespace {

// A bound of the ids of all streams that there are: streams made later have larger ones (measured:
// CUDA counts). 0 if it cannot be had. Capture-safe.
std::uint64_t bound_of_stream_ids(int device) noexcept {
  try {
    device_scope const current(device);
    cudaStream_t made = nullptr;
    check(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    unsigned long long id = 0;
    bool const is_known = succeeded(cudaStreamGetId(made, &id));
    retry_cleanup([made] { return cudaStreamDestroy(made); });
    return is_known ? id : 0;
  } catch (std::exception const&) {
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

// Whether `stream`, of that id, is the stream of `use`, on the calling thread.
bool is_stream_of(stream_use const& use, stream_ref stream, std::uint64_t id, int device) {
  if (use.id != 0) return use.id == id;
  if (use.handle == cudaStreamPerThread) {
    return use.thread == thread_of(stream) && use.device == device;
  }
  if (is_legacy(use.handle)) return is_legacy(stream.get()) && use.device == device;
  // A stream that was made with the handle of one that was destroyed has a larger id.
  return use.handle == stream.get() && id < use.id_below;
}

}  // namespace

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

cudaError_t slot_pool::state::record_all(slot& used) noexcept {
  return record_uses(used, [](stream_use const&) { return true; });
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

void slot_pool::state::record_deferred_on(stream_ref stream, std::uint64_t id) noexcept {
  // The device of an ambiguous handle, asked before the lock. -1, of no use, if it cannot be asked.
  int device = -1;
  static_cast<void>(succeeded(cudaGetDevice(&device)));
  auto const is_here = [&](stream_use const& use) { return is_stream_of(use, stream, id, device); };
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
    // Where nothing was recorded on the stream of its release, it becomes this one's newest; else
    // it has to wait for that one, too, and has lost its place there.
    bool const has_other = each.key_ != free_lists::own_list_of(each);
    bool const is_own = std::ranges::any_of(each.unrecorded_, [&](stream_use const& use) {
      return use.device == options.device && is_here(use);
    });
    each.key_ = is_own && !has_other ? id : free_lists::own_list_of(each);
    static_cast<void>(record_uses(each, is_here));
    finish_release(each);
  }
}

}  // namespace escrow
