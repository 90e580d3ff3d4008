// Slots that were released on one stream and are claimed there again, without events.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>

#include "escrow/detail/slot.hpp"
#include "escrow/detail/spin_lock.hpp"

namespace escrow::inline v0_1 {

// A stream's released slots that no event covers yet: the stream orders their next use there. For
// any other use, one event recorded after their releases covers all of them (state::cover).
// Thread safety: any thread.
// Lifetime: the pool's. A claimer, or the stream itself with pool_options::streams_outlive_pool,
//   uses it from begin() to end().
class alignas(64) local_slots {  // a cache line of its own: each thread has its own stream
 public:
  // For the stream with that id; 0: refuses slots.
  void begin(std::uint64_t stream_id) noexcept {
    std::lock_guard const lock(mutex_);
    stream_id_ = stream_id;
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

  // Adds a slot released on the stream with that id. False if that is not its stream any more: the
  // caller keeps the slot. `rest`: as in take(), and also if there are more than `idle_max` now.
  [[nodiscard]] bool put(slot& released, std::uint64_t stream_id, std::size_t idle_max,
                         std::uint64_t requests, slot*& rest) noexcept {
    std::lock_guard const lock(mutex_);
    if (stream_id_ != stream_id) return false;
    released.older_ = std::exchange(newest_, &released);
    count(idle() + 1);
    bool const is_asked = std::exchange(requests_seen_, requests) != requests;
    if (is_asked || idle() > idle_max) rest = take_all();
    return true;
  }
  // All of them, linked in the same way.
  [[nodiscard]] slot* take_all_slots() noexcept {
    std::lock_guard const lock(mutex_);
    return take_all();
  }

  // If there is none: what others have asked for so far, they have not missed.
  void note_requests(std::uint64_t requests) noexcept {
    std::lock_guard const lock(mutex_);
    if (newest_ == nullptr) requests_seen_ = requests;
  }

  // Statistics.
  [[nodiscard]] std::size_t idle() const noexcept { return idle_.load(std::memory_order_relaxed); }
  [[nodiscard]] std::uint64_t taken() const noexcept {
    return taken_.load(std::memory_order_relaxed);
  }

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
    return oldest;
  }

  spin_lock mutex_;  // guards all below
  std::uint64_t stream_id_ = 0;
  slot* newest_ = nullptr;  // linked by older_
  std::uint64_t requests_seen_ = 0;
  // Written under the lock. Relaxed: others read them for statistics.
  std::atomic<std::size_t> idle_{0};
  std::atomic<std::uint64_t> taken_{0};
};

}  // namespace escrow::inline v0_1
