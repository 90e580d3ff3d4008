// The worker's pass: recycle first and between destructions, then destroy what is ready.
#include <algorithm>
#include <utility>

#include "core_state.hpp"
#include "escrow/core/error.hpp"

namespace escrow::inline v0_1 {

namespace {

thread_local bool is_reclaiming_now = false;

}  // namespace

bool deleter_core::is_reclaiming() noexcept {
  return is_reclaiming_now;
}

std::size_t deleter_core::state::pass(bool& is_thread_relaxed) noexcept {
  pass_device = -1;
  pass_count = 0;
  std::uint64_t const now = epoch.load(std::memory_order_acquire);  // acquire: see `epoch`
  pass_epoch = now;  // for what an error handler retires
  core.recycle_queued();
  sort_arrivals();
  if (prepare_thread(is_thread_relaxed)) {
    if (recycled.deferred() != 0) {
      std::uint64_t last_asked = 0;
      while (recycled.release_done(last_asked, &core)) {
      }
      core.recycle_queued();
      sort_arrivals();
    }
    waiting.poll(ready);
    while (reclaimable* const thing = ready.pop_front()) {
      reclaim(*thing);
      // A destructor may block, e.g. in cudaFree, so recycle before the next one.
      if (!recycled.queue.empty()) core.recycle_queued();
    }
    store.shelve_emptied();
  }
  end_drains(now);
  count_pending();
  seen_epoch.store(now, std::memory_order_relaxed);  // relaxed: see there
  return pass_count;
}

void deleter_core::state::sort_arrivals() noexcept {
  release_list pushed = destroyed.take_all();
  release_list arrivals = store.take_retired();
  arrivals.splice_back(pushed);
  while (reclaimable* const thing = arrivals.pop_front()) {
    known_device = thing->device_;
    thing->ready_ != nullptr ? waiting.add(*thing) : ready.push_back(*thing);
  }
}

bool deleter_core::state::prepare_thread(bool& is_thread_relaxed) noexcept {
  if (is_thread_relaxed) return true;
  if (ready.empty() && waiting.size() == 0 && recycled.deferred() == 0) return true;
  // Before the next call, which would create a context on the current device.
  make_current(known_device >= 0 ? known_device : recycled.device_of_deferred());
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  cudaError_t const status = cudaThreadExchangeStreamCaptureMode(&mode);
  is_thread_relaxed = succeeded(status);
  if (!is_thread_relaxed) core.report(status, "cudaThreadExchangeStreamCaptureMode");
  // Without Relaxed mode a query could invalidate a capture, so retry later. On a lost device there
  // is no capture to invalidate.
  return is_thread_relaxed || is_sticky(status);
}

void deleter_core::state::make_current(int device) noexcept {
  if (device < 0 || device == pass_device) return;
  pass_device = -1;
  constexpr int attempts_max = 3;  // then reclaims with the current device
  for (int attempt = 0; attempt < attempts_max && pass_device < 0; ++attempt) {
    cudaError_t const status = cudaSetDevice(device);
    if (succeeded(status)) {
      pass_device = device;
    } else if (attempt == 0) {
      core.report(status, "cudaSetDevice");
    }
  }
}

void deleter_core::state::reclaim(reclaimable& thing) noexcept {
  make_current(thing.device_);
  thing.ready_ = nullptr;
  thing.order_ = {};
  thing.is_reported_ = false;
  pass_epoch = thing.epoch_;
  bool const is_set = reference_set::is_set(thing);
  bool const was_reclaiming = std::exchange(is_reclaiming_now, true);
  thing.reclaim_(thing);
  is_reclaiming_now = was_reclaiming;
  pass_device = -1;  // a destructor may have changed the current device
  if (std::exchange(is_postponed, false) || is_set) return;
  ++pass_count;
  reclaimed.fetch_add(1, std::memory_order_relaxed);
}

void deleter_core::state::end_drains(std::uint64_t now) noexcept {
  {
    std::lock_guard const lock(drain_mutex);
    if (drained + 1 >= now) return;  // no drain waits
  }
  // In this order: a stage's releases are pushed to the next stage.
  std::uint64_t oldest = std::min(now, recycled.oldest_epoch());
  core.recycle_queued();
  sort_arrivals();
  oldest = std::min({oldest, waiting.oldest_epoch(), ready.oldest_epoch()});
  count_pending();
  std::lock_guard const lock(drain_mutex);
  drained = std::max(drained, oldest - 1);
  drain_ended.notify_all();
}

void deleter_core::state::count_pending() noexcept {
  std::uint64_t const now = waiting.size() + recycled.deferred();
  pending.store(now, std::memory_order_relaxed);  // statistics, which only a pass writes
  if (now > pending_peak.load(std::memory_order_relaxed)) {
    pending_peak.store(now, std::memory_order_relaxed);
  }
}

std::uint64_t deleter_core::state::epoch_of_push() const noexcept {
  if (std::uint64_t const recycling = recycled.epoch_of_this_thread()) return recycling;
  if (is_reclaiming_here()) return pass_epoch;
  // Relaxed: a push that happens before a drain reads an epoch before the drain's.
  return epoch.load(std::memory_order_relaxed);
}

bool deleter_core::state::nothing_arrived() const noexcept {
  // Relaxed: see seen_epoch.
  return recycled.queue.empty() && destroyed.empty() && recycled.deferred() == 0 &&
         !store.has_retired() &&
         epoch.load(std::memory_order_relaxed) == seen_epoch.load(std::memory_order_relaxed);
}

}  // namespace escrow::inline v0_1
