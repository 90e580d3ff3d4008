// SPDX-License-Identifier: Apache-2.0
// The worker's pass: recycle first and between destructions, then destroy what is ready.
#include <algorithm>
#include <utility>

#include "escrow/core/error.hpp"
#include "escrow/internal/deleter_core.hpp"
#include "escrow/internal/environment.hpp"

namespace escrow::inline v0_2 {

namespace {

thread_local bool is_reclaiming_now = false;
thread_local retirement_cover cover;

}  // namespace

bool is_reclaiming() noexcept {
  return is_reclaiming_now;
}

retirement_cover cover_of_reclaim() noexcept {
  return cover;
}

std::size_t deleter_core::pass(bool& is_thread_relaxed) noexcept {
  pass_device_ = -1;
  pass_count_ = 0;
  is_polled_.store(true, std::memory_order_relaxed);                 // see there
  std::uint64_t const now = epoch_.load(std::memory_order_acquire);  // acquire: see epoch_
  pass_epoch_ = now;  // for what an error handler retires
  recycle_queued();
  sort_arrivals();
  if (prepare_thread(is_thread_relaxed)) {
    if (recycled_.deferred() != 0) {
      recycled_.release_done(*this);
      recycle_queued();
      sort_arrivals();
    }
    waiting_.poll(ready_);
    while (reclaimable* const thing = ready_.pop_front()) {
      reclaim(*thing);
      // A destructor may block, e.g. in cudaFree, so recycle before the next one.
      if (!recycled_.queue.empty()) recycle_queued();
    }
    store_.shelve_emptied();
  }
  end_drains(now);
  count_pending();
  seen_epoch_.store(now, std::memory_order_relaxed);  // relaxed: see there
  return pass_count_;
}

void deleter_core::sort_arrivals() noexcept {
  release_list pushed = destroyed_.take_all();
  release_list arrivals = store_.take_retired();
  arrivals.splice_back(pushed);
  while (reclaimable* const thing = arrivals.pop_front()) {
    known_device_ = thing->device_;
    thing->ready_ != nullptr ? waiting_.add(*thing) : ready_.push_back(*thing);
  }
}

bool deleter_core::prepare_thread(bool& is_thread_relaxed) noexcept {
  if (is_thread_relaxed) return true;
  if (ready_.empty() && waiting_.size() == 0 && recycled_.deferred() == 0) return true;
  // Before the next call, which would create a context on the current device.
  make_current(known_device_ >= 0 ? known_device_ : recycled_.device_of_deferred());
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  cudaError_t const status = cudaThreadExchangeStreamCaptureMode(&mode);
  is_thread_relaxed = succeeded(status);
  if (!is_thread_relaxed) report(status, "cudaThreadExchangeStreamCaptureMode");
  // Without Relaxed mode a query could invalidate a capture, so retry later. On a lost device there
  // is no capture to invalidate.
  return is_thread_relaxed || is_sticky(status);
}

void deleter_core::make_current(int device) noexcept {
  if (device < 0 || device == pass_device_) return;
  pass_device_ = -1;
  constexpr int attempts_max = 3;  // then reclaims with the current device
  for (int attempt = 0; attempt < attempts_max && pass_device_ < 0; ++attempt) {
    cudaError_t const status = cudaSetDevice(device);
    if (succeeded(status)) {
      pass_device_ = device;
    } else if (attempt == 0) {
      report(status, "cudaSetDevice");
    }
  }
}

void deleter_core::reclaim(reclaimable& thing) noexcept {
  make_current(thing.device_);
  pass_ready_ = std::exchange(thing.ready_, nullptr);
  pass_stream_ = std::exchange(thing.order_, {}).stream;
  thing.is_reported_ = false;
  pass_epoch_ = thing.epoch_;
  bool const is_set = reference_set::is_set(thing);
  bool const was_reclaiming = std::exchange(is_reclaiming_now, true);
  environment::simulated_reclaims(true);
  thing.reclaim_(thing);
  environment::simulated_reclaims(false);
  is_reclaiming_now = was_reclaiming;
  pass_device_ = -1;  // a destructor may have changed the current device
  if (std::exchange(is_postponed_, false) || is_set) return;
  ++pass_count_;
  count_reclaimed();
}

void deleter_core::clear_covered(retired_object& owner) noexcept {
  // A nested reclaim, of what the destructor polls, has its own.
  retirement_cover const its{pass_stream_, std::exchange(owner.covers_, 0)};
  retirement_cover const outer = std::exchange(cover, its);
  environment::simulated_destroys(pass_ready_);
  owner.clear();
  environment::simulated_destroys(nullptr);
  cover = outer;
}

void deleter_core::end_drains(std::uint64_t now) noexcept {
  {
    std::lock_guard const lock(drain_mutex_);
    if (drained_ + 1 >= now) return;  // no drain waits
  }
  // In this order: a stage's releases are pushed to the next stage.
  std::uint64_t oldest = std::min(now, recycled_.oldest_epoch());
  recycle_queued();
  sort_arrivals();
  oldest = std::min({oldest, waiting_.oldest_epoch(), ready_.oldest_epoch()});
  count_pending();
  std::lock_guard const lock(drain_mutex_);
  drained_ = std::max(drained_, oldest - 1);
  drain_ended_.notify_all();
}

void deleter_core::count_pending() noexcept {
  std::uint64_t const now = waiting_.size() + recycled_.deferred();
  pending_.store(now, std::memory_order_relaxed);  // statistics, which only a pass writes
  if (now > pending_peak_.load(std::memory_order_relaxed)) {
    pending_peak_.store(now, std::memory_order_relaxed);
  }
}

std::uint64_t deleter_core::epoch_of_push() const noexcept {
  if (std::uint64_t const recycling = recycled_.epoch_of_this_thread()) return recycling;
  if (is_reclaiming_here()) return pass_epoch_;
  // Relaxed: a push that happens before a drain reads an epoch before the drain's.
  return epoch_.load(std::memory_order_relaxed);
}

bool deleter_core::is_quiet() const noexcept {
  // In this order: what arrived is taken by a pass, which leaves the rest in `has_pending_`.
  // Acquire: see guarded_pass().
  return nothing_arrived() &&
         reclaiming_thread_.load(std::memory_order_acquire) == std::thread::id{} &&
         !has_pending_.load(std::memory_order_acquire);
}

bool deleter_core::may_reclaim() const noexcept {
  return options_.own_worker && !is_reclaiming() && !is_reclaiming_here() &&
         !is_process_exiting() && !is_quiet();
}

bool deleter_core::nothing_arrived() const noexcept {
  // Relaxed: see seen_epoch_.
  return recycled_.queue.empty() && destroyed_.empty() && recycled_.deferred() == 0 &&
         !store_.has_retired() &&
         epoch_.load(std::memory_order_relaxed) == seen_epoch_.load(std::memory_order_relaxed);
}

}  // namespace escrow::inline v0_2
