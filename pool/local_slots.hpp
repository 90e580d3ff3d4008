// Slots that were released on one stream and are claimed there again, without events.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>

#include "escrow/detail/slot.hpp"
#include "escrow/internal/spin_lock.hpp"

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

  // For the stream with that id. Refuses slots before. What others asked for, they did not miss
  // here.
  void begin(std::uint64_t stream_id, std::uint64_t requests) noexcept {
    std::lock_guard const lock(mutex_);
    stream_id_ = stream_id;
    requests_seen_ = requests;
  }
  // Refuses slots from now on. Returns those that are left, linked as in take().
  [[nodiscard]] slot* end() noexcept {
    std::lock_guard const lock(mutex_);
    stream_id_ = 0;
    return take_all();
  }

  // The slot released last; null if there is none. `rest`: if others have asked for slots since the
  // last put() (`requests` changed), all others, linked by newer_ from the oldest on, for the
  // caller to cover.
  [[nodiscard]] slot* take(std::uint64_t requests, slot*& rest) noexcept {
    std::lock_guard const lock(mutex_);
    slot* const found = newest_;
    if (found == nullptr) return nullptr;
    newest_ = std::exchange(found->older_, nullptr);
    count(idle() - 1);
    taken_.store(taken() + 1, std::memory_order_relaxed);
    if (requests_seen_ != requests) [[unlikely]]
      rest = take_all();  // put() gives this one, too
    return found;
  }

  // Adds a slot released on the stream with that id. False if that is not its stream any more, or
  // if it may keep none now: the caller keeps the slot. `rest`: as in take(), and also if there are
  // more than `idle_max` now, or more than the pool allows.
  [[nodiscard]] bool put(slot& released, std::uint64_t stream_id, std::size_t idle_max,
                         std::uint64_t requests, slot*& rest) noexcept {
    std::lock_guard const lock(mutex_);
    if (stream_id_ != stream_id) return false;
    bool const is_full = idle() >= idle_max || (idle() == reserved_ && !reserve());
    if (is_full && newest_ == nullptr) return false;
    released.older_ = std::exchange(newest_, &released);
    count(idle() + 1);
    bool const is_asked = std::exchange(requests_seen_, requests) != requests;
    if (is_asked || is_full) {
      rest = take_all();
    } else if (reserved_ > idle_max) [[unlikely]] {  // it may keep fewer than before
      give_back(reserved_ - idle_max);
    }
    return true;
  }
  // All of them, linked in the same way, if its stream has that id.
  [[nodiscard]] slot* take_all_of(std::uint64_t stream_id) noexcept {
    std::lock_guard const lock(mutex_);
    return stream_id_ == stream_id ? take_all() : nullptr;
  }
  // The same if others have asked for slots since the last put().
  [[nodiscard]] slot* take_asked_of(std::uint64_t stream_id, std::uint64_t requests) noexcept {
    std::lock_guard const lock(mutex_);
    if (stream_id_ != stream_id || newest_ == nullptr) return nullptr;
    return std::exchange(requests_seen_, requests) == requests ? nullptr : take_all();
  }

  // If there is none, and others had not asked for more before a claim of its stream, which then
  // asked, too: nothing is missed.
  void note_requests(std::uint64_t before, std::uint64_t requests) noexcept {
    std::lock_guard const lock(mutex_);
    if (newest_ == nullptr && requests_seen_ == before) requests_seen_ = requests;
  }

  // Statistics.
  [[nodiscard]] std::size_t idle() const noexcept { return idle_.load(std::memory_order_relaxed); }
  [[nodiscard]] std::uint64_t taken() const noexcept {
    return taken_.load(std::memory_order_relaxed);
  }

  // Of memory_budget::requests, how many its stream's claims have answered. Relaxed: a number.
  std::atomic<std::uint64_t> budget_requests_seen{0};

  // Its stream. If that outlives the pool: set once, before claims see it. Else the next three are
  // guarded by slot_pool::state::locals_mutex.
  stream_use of_stream;
  local_slots* chained = nullptr;  // the next stream of the same hash
  bool is_spare = false;           // no claimer uses it

 private:
  void count(std::size_t now) noexcept { idle_.store(now, std::memory_order_relaxed); }
  [[nodiscard]] slot* take_all() noexcept {
    slot* oldest = nullptr;
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
  slot* newest_ = nullptr;  // linked by older_
  std::uint64_t requests_seen_ = 0;
  std::size_t reserved_ = 0;  // of what all may keep; at least idle()
  // Written under the lock. Relaxed: others read them for statistics.
  std::atomic<std::size_t> idle_{0};
  std::atomic<std::uint64_t> taken_{0};
};

}  // namespace escrow::inline v0_1
