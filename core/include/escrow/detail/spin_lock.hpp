// A lock for a few instructions.
#pragma once

#include <atomic>
#include <chrono>
#include <thread>

namespace escrow {

// What: a lock to hold for a few instructions, across no call that could block. Taking it costs one
//   read-modify-write and giving it back one store, a third of std::mutex, which counts where a
//   claim has to stay near the cost of one event record.
// Thread safety: any thread; meets the standard's Lockable requirements. What a thread did before
//   unlock() happens before the return of the next lock().
class spin_lock {
 public:
  void lock() noexcept {
    for (int waits = 0; !try_lock(); ++waits) wait(waits);
  }

  [[nodiscard]] bool try_lock() noexcept {
    // Acquire: pairs with the release in unlock().
    return !is_locked_.exchange(true, std::memory_order_acquire);
  }

  void unlock() noexcept { is_locked_.store(false, std::memory_order_release); }

 private:
  void wait(int earlier_waits) const noexcept {
    // Relaxed: only a guess of when to try again. The holder needs a few nanoseconds unless it was
    // preempted; then it needs our core.
    for (int look = 0; look < 100; ++look) {
      if (!is_locked_.load(std::memory_order_relaxed)) return;
    }
    // Yielding gives the core to no thread of lower priority (SCHED_FIFO): sleeping does.
    constexpr int yields_max = 16;
    if (earlier_waits < yields_max) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

  std::atomic<bool> is_locked_{false};
};

}  // namespace escrow
