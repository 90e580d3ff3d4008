// Threads of programs, of which one runs at a time: the one that has the baton.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace escrow::test {

/// What: the threads of programs: CUDA's captures know which thread began them. Number 0 is the
/// caller. They stay for the next program.
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

/// What: runs the work of several threads in turns. The thread that has the baton runs; at its
/// switch points it may pass it on to the next that is not done. Switch points are the beginning of
/// each lock and the end of each unlock inside an open_points scope, and so both sides of each
/// simulated call of CUDA, and the scope's own beginning and end. A lock that another has, a wait,
/// and a yield always pass it on: see wrapped.cpp. The choices thus decide all that happens.
/// Thread safety: one caller of run(); the rest by the threads of the group.
class baton {
 public:
  struct runner {
    std::size_t thread = 0;    // of the team, another for each
    std::uint64_t passes = 0;  // bit n: it passes the baton on at its point n, n + 64, ...
    std::function<void()> work;
  };

  /// Runs all, beginning with the first, and returns when all are done.
  static void run(std::vector<runner> const& group);

  /// Whether the calling thread is one of a group.
  [[nodiscard]] static bool is_in_group() noexcept;
  /// A switch point.
  static void point() noexcept;
  /// Another has to come further first. Ends the program if none can: a deadlock.
  static void wait() noexcept;
  /// What was waited for has come.
  static void go_on() noexcept;

  /// How often one of this run waited for a lock that another had.
  [[nodiscard]] static std::size_t lock_waits() noexcept;
  static void count_lock_wait() noexcept;
};

/// While it lives, the thread's switch points count: it is inside a call of the library.
class open_points {
 public:
  open_points() noexcept;
  open_points(open_points&&) = delete;
  ~open_points();
};

}  // namespace escrow::test
