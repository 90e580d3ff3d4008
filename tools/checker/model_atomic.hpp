// SPDX-License-Identifier: Apache-2.0
// An atomic that sleeps and wakes by the checker's futex.
#pragma once

#include <atomic>
#include <cstdint>

#include "checker.hpp"

namespace escrow::model {

// As std::atomic, but for the counts and the spinning that the standard library has around a futex,
// which would make states that say nothing of who uses it.
template <class T>
class bare_atomic : public std::atomic<T> {
 public:
  using std::atomic<T>::atomic;
  static_assert(sizeof(T) == sizeof(std::uint32_t));

  void wait(T old, std::memory_order order) const noexcept {
    while (this->load(order) == old) sleep_while(this, old);
  }
  void notify_one() noexcept { wake_one(this); }
};

}  // namespace escrow::model
