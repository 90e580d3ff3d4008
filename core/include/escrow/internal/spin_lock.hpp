// SPDX-License-Identifier: Apache-2.0
// A lock for critical sections of a few instructions.
#pragma once

#include <atomic>
#include <chrono>
#include <thread>

#include "escrow/detail/shared_count.hpp"
#include "escrow/version.hpp"

namespace escrow::inline v0_2 {

// What: a lock for a few instructions, without blocking calls. Locking costs one read-modify-write
//   and unlocking one store, a third of std::mutex; a claim must cost little more than one event
//   record.
// Thread safety: any thread; a standard Lockable. What a thread did before unlock() happens before
//   the return of the next lock().
class spin_lock {
 public:
  [[gnu::always_inline]] void lock() noexcept {
    for (int waits = 0; !try_lock(); ++waits) wait(waits);
  }

  [[nodiscard]] bool try_lock() noexcept {
    // Acquire: pairs with the release in unlock().
    if (is_locked_.exchange(true, std::memory_order_acquire)) return false;
    if (__tsan_acquire != nullptr) __tsan_acquire(this);
    return true;
  }

  void unlock() noexcept {
    if (__tsan_release != nullptr) __tsan_release(this);
    is_locked_.store(false, std::memory_order_release);
  }

 private:
  void wait(int earlier_waits) const noexcept {
    // Relaxed: only a hint. The holder needs a few nanoseconds or, if preempted, this core.
    for (int look = 0; look < 100; ++look) {
      if (!is_locked_.load(std::memory_order_relaxed)) return;
    }
    // Yielding does not run threads of lower priority (SCHED_FIFO); sleeping does.
    constexpr int yields_max = 16;
    if (earlier_waits < yields_max) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

  std::atomic<bool> is_locked_{false};
};

}  // namespace escrow::inline v0_2
