// Recycling under a short lock; events are asked about outside of it.
#include "recycle_lane.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>
#include <vector>

#include "escrow/core/error.hpp"
#include "escrow/detail/deleter_core.hpp"
#include "escrow/detail/ready_event.hpp"

namespace escrow {

// What is asked about one deferred release, without the lock.
struct recycle_lane::question {
  std::uint64_t serial;
  cudaEvent_t ready;
  std::shared_ptr<launch_end> owner;  // keeps the event from its next use
  bool is_reported;
  ready_answer answer = ready_answer::not_yet;
};

void recycle_lane::recycle_queued(void (*take)(reclaimable&) noexcept) noexcept {
  std::lock_guard const lock(mutex_);
  thread_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  do {  // shares of slots may be pushed by what is recycled
    release_list taken = queue.take_all();
    while (reclaimable* const each = taken.pop_front()) {
      epoch_ = release_list::epoch_of(*each);
      take(*each);
    }
  } while (!queue.empty());
  thread_.store(std::thread::id{}, std::memory_order_relaxed);
}

void recycle_lane::defer(deferred_releases waiting, std::uint64_t epoch) noexcept {
  std::lock_guard const lock(mutex_);
  for (deferred_release& each : waiting) {
    each.epoch = epoch;
    each.serial = ++serials_;
  }
  count_.fetch_add(waiting.size(), std::memory_order_relaxed);
  waiting_.splice(waiting_.end(), waiting);
}

std::span<recycle_lane::question> recycle_lane::next_questions(std::span<question> to,
                                                               std::uint64_t after,
                                                               bool is_worker) const noexcept {
  std::lock_guard const lock(mutex_);
  std::size_t count = 0;
  for (deferred_release const& each : waiting_) {
    if (count == to.size()) break;
    if (each.serial <= after || (each.owner == nullptr && !is_worker)) continue;
    to[count++] = {each.serial, each.ready, each.owner, each.is_reported};
  }
  return to.first(count);
}

std::size_t recycle_lane::poll_deferred(report_function const* report) noexcept {
  bool const is_worker = report != nullptr;
  std::size_t released = 0;
  std::uint64_t last_asked = 0;
  while (deferred() != 0) {
    std::array<question, 16> room{};
    std::span<question> const asked = next_questions(room, last_asked, is_worker);
    if (asked.empty()) break;
    last_asked = asked.back().serial;
    for (question& each : asked) {
      cudaError_t const status = cudaEventQuery(each.ready);
      if (status == cudaErrorNotReady) continue;
      if (status != cudaSuccess) static_cast<void>(cudaGetLastError());
      if (status != cudaSuccess && !is_worker) continue;
      each.answer = answer_of(status);
      // Asked twice, because the set is leaked.
      if (each.answer == ready_answer::gone) {
        each.answer = answer_of(cudaEventQuery(each.ready));
        static_cast<void>(cudaGetLastError());
      }
      if (status == cudaSuccess || std::exchange(each.is_reported, true)) continue;
      (*report)(status);
    }
    released += release(asked);
  }
  return released;
}

std::size_t recycle_lane::release(std::span<question const> asked) noexcept {
  deferred_releases finished;  // destroyed after the lock: that may call CUDA
  {
    std::lock_guard const lock(mutex_);
    thread_.store(std::this_thread::get_id(), std::memory_order_relaxed);
    auto next = asked.begin();
    for (auto each = waiting_.begin(); each != waiting_.end() && next != asked.end();) {
      auto const here = each++;
      next = std::find_if(next, asked.end(),
                          [here](question const& of) { return of.serial >= here->serial; });
      if (next == asked.end() || next->serial != here->serial) continue;  // new, or skipped
      here->is_reported = next->is_reported;
      if (next->answer == ready_answer::not_yet) continue;
      epoch_ = here->epoch;
      if (next->answer == ready_answer::done)
        here->set = {};  // pushes the set if that was the last
      finished.splice(finished.end(), waiting_, here);
    }
    count_.fetch_sub(finished.size(), std::memory_order_relaxed);
    thread_.store(std::thread::id{}, std::memory_order_relaxed);
  }
  std::size_t const count = finished.size();
  for (deferred_release& each : finished) {
    if (each.set) each.set.release()->core().count_leaked();  // its event will never answer
  }
  return count;
}

int recycle_lane::device_of_deferred() const noexcept {
  std::lock_guard const lock(mutex_);
  return waiting_.empty() ? -1 : waiting_.front().device;
}

std::uint64_t recycle_lane::oldest_epoch() const noexcept {
  std::lock_guard const lock(mutex_);
  std::uint64_t oldest = std::numeric_limits<std::uint64_t>::max();
  for (deferred_release const& each : waiting_) oldest = std::min(oldest, each.epoch);
  return oldest;
}

}  // namespace escrow
