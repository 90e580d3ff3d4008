// Threads that do what they are told.
#pragma once

#include <cstddef>
#include <functional>

namespace escrow::test {

/// What: the threads of programs: CUDA's captures know who began them. Number 0 is the caller. They
/// stay for the next program.
/// Thread safety: one caller.
class team {
 public:
  /// Runs `work` on that thread, and returns when it is done.
  static void on(std::size_t thread, std::function<void()> const& work);
  /// Lets that thread begin with `work`, which must stay until await(); not number 0.
  static void start(std::size_t thread, std::function<void()> const& work);
  /// Waits until the thread has done what it was started with.
  static void await(std::size_t thread);
};

}  // namespace escrow::test
