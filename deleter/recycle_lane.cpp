// Recycling under a short lock; events are queried without it.
#include "escrow/internal/recycle_lane.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>
#include <vector>

#include "escrow/core/error.hpp"
#include "escrow/internal/deleter_core.hpp"
#include "escrow/internal/pending_events.hpp"

namespace escrow::inline v0_1 {

// One deferred release to query, without the lock.
struct recycle_lane::question {
  std::uint64_t serial;
  cudaEvent_t ready;
  std::shared_ptr<launch_end> owner;  // keeps the event from being reused
  bool is_reported;
  ready_answer answer = ready_answer::not_yet;
};

void recycle_lane::recycle_queued() noexcept {
  std::lock_guard const lock(mutex_);
  thread_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  do {  // shares of slots may be pushed by what is recycled
    release_list taken = queue.take_all();
    while (reclaimable* const each = taken.pop_front()) {
      epoch_ = each->epoch_;
      if (!reference_set::is_set(*each)) each->core().count_reclaimed();
      each->reclaim_(*each);
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

bool recycle_lane::release_done(std::uint64_t& last_asked, deleter_core* worker) noexcept {
  if (deferred() == 0) return false;
  std::array<question, 8> room{};
  std::span<question> const asked = next_questions(room, last_asked, worker != nullptr);
  if (asked.empty()) return false;
  last_asked = asked.back().serial;
  for (question& each : asked) {
    if (worker != nullptr) {
      each.answer = ask(each.ready, each.is_reported, *worker);
    } else if (succeeded(cudaEventQuery(each.ready))) {
      each.answer = ready_answer::done;
    }
  }
  release(asked);
  return true;
}

void recycle_lane::release(std::span<question const> asked) noexcept {
  deferred_releases finished;  // destroyed after unlocking: that may call CUDA
  {
    std::lock_guard const lock(mutex_);
    thread_.store(std::this_thread::get_id(), std::memory_order_relaxed);
    auto each = waiting_.begin();
    for (question const& of : asked) {
      while (each != waiting_.end() && each->serial < of.serial) ++each;
      if (each == waiting_.end()) break;
      if (each->serial != of.serial) continue;  // another thread has released it
      each->is_reported = of.is_reported;
      if (of.answer == ready_answer::not_yet) continue;
      auto const here = each++;
      epoch_ = here->epoch;
      if (of.answer == ready_answer::done) here->set = {};  // the last reference pushes the set
      finished.splice(finished.end(), waiting_, here);
    }
    count_.fetch_sub(finished.size(), std::memory_order_relaxed);
    thread_.store(std::thread::id{}, std::memory_order_relaxed);
  }
  for (deferred_release& each : finished) {
    if (each.set) each.set.release()->core().count_leaked();  // never known to be done
  }
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

}  // namespace escrow::inline v0_1
