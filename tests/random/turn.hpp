// One thread waits until another says that it is its turn.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

namespace escrow::test {

/// What: a word that one thread sets and one waits for. It uses none of what the baton makes
/// schedulable: no lock of the library's kind, no yield.
/// Thread safety: one thread gives, one takes. Memory ordering: what came before give() is seen
/// after take().
class turn {
 public:
  void give() noexcept {
    // Release, with the acquire in take(): the giver's work comes before the taker's.
    if (state_.exchange(given, std::memory_order_release) == asleep) futex(FUTEX_WAKE_PRIVATE, 1);
  }

  void take() noexcept {
    std::uint32_t seen = idle;
    while (true) {
      // Acquire: see give(). Who finds nothing says that it sleeps.
      if (state_.compare_exchange_strong(seen, seen == given ? idle : asleep,
                                         std::memory_order_acquire) &&
          seen == given)
        return;
      // Spurious ends and late looks only mean another look.
      if (seen != given) futex(FUTEX_WAIT_PRIVATE, asleep);
      seen = state_.load(std::memory_order_relaxed);
    }
  }

 private:
  void futex(int what, std::uint32_t value) noexcept {
    static_assert(sizeof(state_) == sizeof(std::uint32_t));
    syscall(SYS_futex, &state_, what, value, nullptr, nullptr, 0);
  }

  static constexpr std::uint32_t idle = 0;
  static constexpr std::uint32_t given = 1;
  static constexpr std::uint32_t asleep = 2;
  std::atomic<std::uint32_t> state_{idle};
};

}  // namespace escrow::test
