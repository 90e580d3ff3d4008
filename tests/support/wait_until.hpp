// Waiting for a condition, with a bound.
#pragma once

#include <chrono>
#include <thread>

namespace escrow::test {

/// How long a test waits for what must happen; a pass never takes that long.
inline constexpr std::chrono::seconds generous{5};

/// True once `condition()` holds; false when it does not within `bound`.
template <class Condition>
[[nodiscard]] bool wait_until(Condition condition, std::chrono::nanoseconds bound = generous) {
  auto const end = std::chrono::steady_clock::now() + bound;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) {
      return condition();
    }
    std::this_thread::sleep_for(std::chrono::microseconds{50});
  }
  return true;
}

/// True if `condition()` stays false for a while. For what must *not* happen: it cannot fail by
/// mischance, and what it guards against takes well under a millisecond where it does happen.
template <class Condition>
[[nodiscard]] bool stays_false(Condition condition) {
  return !wait_until(condition, std::chrono::milliseconds{100});
}

}  // namespace escrow::test
