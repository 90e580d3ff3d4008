// SPDX-License-Identifier: Apache-2.0
// A value that its first user makes.
#pragma once

#include <atomic>
#include <mutex>
#include <optional>

#include "escrow/detail/shared_count.hpp"
#include "escrow/version.hpp"

namespace escrow::inline v0_2 {

// What: holds a T that the first get() makes. If that throws, the next one tries again, which
//   std::call_once does not do everywhere: under ThreadSanitizer it waits forever.
// Thread safety: any thread calls get(); one makes the value while the others wait for it.
template <class T>
class made_once {
 public:
  // `make(place)` makes the value in the empty std::optional `place`. It must not call get().
  template <class Make>
  [[nodiscard]] T& get(Make&& make) {
    // Acquire: what made the value.
    if (T* const made = made_.load(std::memory_order_acquire)) {
      tell_taken(&made_);
      return *made;
    }
    std::lock_guard const lock(mutex_);
    if (!place_) {
      make(place_);
      tell_handed_over(&made_);
      made_.store(&*place_, std::memory_order_release);  // release: the value
    }
    return *place_;
  }

  // The value, once a get() has returned to this thread.
  [[nodiscard]] T& operator*() noexcept { return *place_; }
  [[nodiscard]] T* operator->() noexcept { return &*place_; }

 private:
  std::mutex mutex_;  // guards the making, with what it calls
  std::atomic<T*> made_{nullptr};
  std::optional<T> place_;
};

}  // namespace escrow::inline v0_2
