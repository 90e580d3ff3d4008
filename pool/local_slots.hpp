// Slots that were released on one stream and are claimed there again, without events.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>

#include "escrow/internal/spin_lock.hpp"
#include "slot.hpp"

namespace escrow::inline v0_1 {

// A stream's released slots that no event covers yet: the stream orders their next use there. For
// any other use, one event recorded after their releases covers all of them (state::cover).
// Thread safety: any thread.
// Lifetime: the pool's. A claimer, or the stream itself with pool_options::streams_outlive_pool,
//   uses it from begin() to end().
class alignas(64) local_slots {  // a cache line of its own: each thread has its own stream
 public:
  // `left`: how many more slots all local_slots of the pool together may keep. Relaxed: a number.
  explicit local_slots(std::atomic<std::size_t>& left) noexcept : left_(left) {}
  local_slots(local_slots&&) = delete;

  // For the stream with that id. Refuses slots before.
  void begin(std::uint64_t stream_id) noexcept {
    std::lock_guard const lock(mutex_);
    stream_id_ = stream_id;
  }
  // Refuses slots from now on. Returns those that are left, linked by newer_ from the oldest on.
  [[nodiscard]] slot* end() noexcept {
    std::lock_guard const lock(mutex_);
    stream_id_ = 0;
    return take_all(nullptr);
  }

  // The slot released last; null if there is none.
  [[nodiscard]] slot* take() noexcept {
    std::lock_guard const lock(mutex_);
    slot* const found = newest_;
    if (found == nullptr) return nullptr;
    newest_ = std::exchange(found->older_, nullptr);
    count(idle() - 1);
    taken_.store(taken() + 1, std::memory_order_relaxed);
    return found;
  }

  // Adds a slot released on the stream with that id. False if that is not its stream any more, if
  // there are `idle_max`, or if all local_slots keep what the pool allows: the caller keeps it.
  [[nodiscard]] bool put(slot& released, std::uint64_t stream_id, std::size_t idle_max) noexcept {
    std::lock_guard const lock(mutex_);
    if (stream_id_ != stream_id || idle() >= idle_max) return false;
    if (idle() == reserved_ && !reserve()) return false;
    released.older_ = std::exchange(newest_, &released);
    count(idle() + 1);
    if (reserved_ > idle_max) [[unlikely]]
      give_back(reserved_ - idle_max);  // it may keep fewer than before
    return true;
  }
  // All of them, linked as in end(), and then `newer`, if its stream has that id; else only that.
  [[nodiscard]] slot* take_all_of(std::uint64_t stream_id, slot* newer = nullptr) noexcept {
    std::lock_guard const lock(mutex_);
    return stream_id_ == stream_id ? take_all(newer) : newer;
  }

  // Statistics.
  [[nodiscard]] std::size_t idle() const noexcept { return idle_.load(std::memory_order_relaxed); }
  [[nodiscard]] std::uint64_t taken() const noexcept {
    return taken_.load(std::memory_order_relaxed);
  }

  // How many of slot_pool::state::requests its claims have answered. Relaxed: as there.
  std::atomic<std::uint64_t> requests_seen{0};

  // Its stream. If that outlives the pool: set once, before claims see it. Else the next three are
  // guarded by size_class::locals_mutex.
  stream_use of_stream;
  local_slots* chained = nullptr;  // the next stream of the same hash
  bool is_spare = false;           // no claimer uses it

 private:
  void count(std::size_t now) noexcept { idle_.store(now, std::memory_order_relaxed); }
  [[nodiscard]] slot* take_all(slot* oldest) noexcept {
    while (newest_ != nullptr) {
      slot* const next = std::exchange(newest_->older_, nullptr);
      newest_->newer_ = std::exchange(oldest, newest_);
      newest_ = next;
    }
    count(0);
    give_back(reserved_);
    return oldest;
  }
  // One more of what all may keep. It stays reserved while the slot is leased.
  [[nodiscard]] bool reserve() noexcept {
    std::size_t left = left_.load(std::memory_order_relaxed);
    do {
      if (left == 0) return false;
    } while (!left_.compare_exchange_weak(left, left - 1, std::memory_order_relaxed));
    ++reserved_;
    return true;
  }
  void give_back(std::size_t count) noexcept {
    if (count == 0) return;
    left_.fetch_add(count, std::memory_order_relaxed);
    reserved_ -= count;
  }

  std::atomic<std::size_t>& left_;

  spin_lock mutex_;  // guards all below
  std::uint64_t stream_id_ = 0;
  slot* newest_ = nullptr;    // linked by older_
  std::size_t reserved_ = 0;  // of what all may keep; at least idle()
  // Written under the lock. Relaxed: others read them for statistics.
  std::atomic<std::size_t> idle_{0};
  std::atomic<std::uint64_t> taken_{0};
};

}  // namespace escrow::inline v0_1
