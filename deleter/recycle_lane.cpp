// SPDX-License-Identifier: Apache-2.0
// Recycling under a short lock; events are queried without it.
#include "escrow/internal/recycle_lane.hpp"

#include <algorithm>
#include <limits>
#include <new>
#include <utility>

#include "escrow/internal/deleter_accounts.hpp"
#include "escrow/internal/pending_events.hpp"

namespace escrow::inline v0_2 {

void recycle_lane::recycle_queued() noexcept {
  std::lock_guard const lock(mutex_);
  thread_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  do {  // shares of slots may be pushed by what is recycled
    release_list taken = queue.take_all();
    while (reclaimable* const each = taken.pop_front()) {
      epoch_ = each->epoch_;
      if (!reference_set::is_set(*each)) each->accounts().count_reclaimed();
      each->reclaim_(*each);
    }
  } while (!queue.empty());
  thread_.store(std::thread::id{}, std::memory_order_relaxed);
}

void recycle_lane::defer(deferred_releases waiting, std::uint64_t epoch) noexcept {
  for (deferred_release& each : waiting) each.epoch = epoch;
  std::lock_guard const lock(mutex_);
  count_.fetch_add(waiting.size(), std::memory_order_relaxed);
  waiting_.splice(waiting_.end(), waiting);
}

std::vector<std::shared_ptr<launch_end>> recycle_lane::ends() const {
  std::lock_guard const lock(mutex_);
  std::vector<std::shared_ptr<launch_end>> found;
  for (deferred_release const& each : waiting_) {
    if (found.empty() || found.back() != each.end) found.push_back(each.end);
  }
  return found;
}

void recycle_lane::release(std::span<answered_end const> all) noexcept {
  deferred_releases done;  // destroyed after unlocking: that may call CUDA
  deferred_releases gone;
  {
    std::lock_guard const lock(mutex_);
    thread_.store(std::this_thread::get_id(), std::memory_order_relaxed);
    auto next = all.begin();
    for (auto each = waiting_.begin(); each != waiting_.end();) {
      auto const here = each++;
      // What comes later in the list does not stand before it in `all`.
      auto const its = std::find_if(next, all.end(),
                                    [&](answered_end const& of) { return of.end == here->end; });
      if (its == all.end()) continue;
      next = its;
      if (its->answer == ready_answer::not_yet) continue;
      epoch_ = here->epoch;
      bool const is_done = its->answer == ready_answer::done;
      if (is_done) here->drop();  // the last reference pushes the set
      deferred_releases& to = is_done ? done : gone;
      to.splice(to.end(), waiting_, here);
    }
    count_.fetch_sub(done.size() + gone.size(), std::memory_order_release);  // see deferred()
    thread_.store(std::thread::id{}, std::memory_order_relaxed);
  }
  leak(std::move(gone));
}

void recycle_lane::release_done(deleter_accounts& worker) noexcept {
  try {
    std::vector<answered_end> all;
    for (auto& end : ends()) {
      // Relaxed: only the flag matters.
      bool is_reported = end->is_reported.load(std::memory_order_relaxed);
      ready_answer const answer = ask(end->ready.get(), is_reported, worker);
      end->is_reported.store(is_reported, std::memory_order_relaxed);
      all.push_back({std::move(end), answer});
    }
    release(all);
  } catch (std::bad_alloc const&) {
    // The next pass asks.
  }
}

int recycle_lane::device_of_deferred() const noexcept {
  std::lock_guard const lock(mutex_);
  return waiting_.empty() ? -1 : waiting_.front().end->device;
}

std::uint64_t recycle_lane::oldest_epoch() const noexcept {
  std::lock_guard const lock(mutex_);
  std::uint64_t oldest = std::numeric_limits<std::uint64_t>::max();
  for (deferred_release const& each : waiting_) oldest = std::min(oldest, each.epoch);
  return oldest;
}

}  // namespace escrow::inline v0_2
