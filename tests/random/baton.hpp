// SPDX-License-Identifier: Apache-2.0
// What the linker replaces for programs: locks and waits, so that of several threads one runs, the
// one that has the baton; and what a process has one of, so that a program depends on no other.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <escrow/internal/graph_registry.hpp>
#include <functional>
#include <memory>
#include <utility>
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

/// What: while it is there, the library has this registry of graphs, which is empty at first, this
/// clock, which goes on by a microsecond with each look, and to the end of each wait, and these
/// numbers of addresses. Tables of the process's registry have grown with earlier programs, and it
/// remembers handles of theirs; texts and waits depend on the time; and what shares a place in a
/// table by its hash, on what was allocated before. See baton.cpp.
/// Thread safety: one at a time; used by the thread that has the baton.
class own_process {
 public:
  own_process();
  own_process(own_process&&) = delete;
  ~own_process() { current_ = nullptr; }

  /// What is leaked uses it further.
  [[nodiscard]] std::shared_ptr<graph_registry> const& registry() const { return registry_; }
  [[nodiscard]] std::chrono::nanoseconds look_at_clock() {
    return now_ += std::chrono::microseconds(1);
  }
  /// That of an address is how many others were asked for before, up to its end.
  [[nodiscard]] std::uintptr_t number_of(void const* address) noexcept;
  void address_gone(void const* address) noexcept;
  void wait_until(std::chrono::nanoseconds end) {
    if (now_ < end) now_ = end;
  }

  /// That of the program that runs; null on threads that run none, e.g. a worker's.
  [[nodiscard]] static own_process* current() { return runs_programs_ ? current_ : nullptr; }
  /// The calling thread is one of the programs'.
  static void run_programs_here() { runs_programs_ = true; }

 private:
  std::shared_ptr<graph_registry> registry_ = std::make_shared<graph_registry>();
  // No allocation: those of the library are counted.
  std::array<std::pair<void const*, std::uintptr_t>, 512> numbers_{};
  std::size_t numbers_now_ = 0;
  std::uintptr_t numbers_made_ = 0;
  std::chrono::nanoseconds now_ = std::chrono::hours(1);  // 0 would mean: no time
  static inline own_process* current_ = nullptr;
  static inline thread_local bool runs_programs_ = false;
};

}  // namespace escrow::test
