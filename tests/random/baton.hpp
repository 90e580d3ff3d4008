// Operations of several threads that are under way at the same time, of which one runs: the one
// that has the baton.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace escrow::test {

/// What: runs the work of several threads in turns. The thread that has the baton runs; at its
/// switch points it may pass it on to the next that is not done. Switch points are the beginning of
/// each lock and the end of each unlock between open_points() and close_points(), and so both sides
/// of each simulated call of CUDA, and these two themselves. A lock that another has, a wait,
/// and a yield always pass it on. The choices thus decide all that happens.
/// Thread safety: one caller of run(); the rest by the threads of the group.
class baton {
 public:
  struct runner {
    std::size_t thread = 0;    // CUDA's captures know theirs; 0: the caller; another for each
    std::uint64_t passes = 0;  // bit n: it passes the baton on at its point n, n + 64, ...
    std::function<void()> work;
  };

  /// Runs all, beginning with the first, and returns when all are done. The threads stay for the
  /// next group. A group of one has no switch points.
  static void run(std::vector<runner> const& group);

  /// Whether the calling thread is one of a group.
  [[nodiscard]] static bool is_in_group() noexcept;
  /// A switch point, if the thread is in a group and its points are open.
  static void point() noexcept;
  /// The thread is inside a call of the library from here, and up to here.
  static void open_points() noexcept;
  static void close_points() noexcept;
  /// Another has to come further first. Ends the program if none can: a deadlock.
  static void wait() noexcept;
  /// How often one of the last group waited for a lock that another had.
  [[nodiscard]] static std::size_t lock_waits() noexcept;
};

}  // namespace escrow::test
