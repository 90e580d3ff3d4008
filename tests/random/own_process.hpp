// What a process has one of, and a program one of its own, so that it depends on no other program.
#pragma once

#include <chrono>
#include <cstdint>
#include <escrow/internal/reference_set.hpp>
#include <memory>

namespace escrow::test {

/// What: while it is there, the library has this registry of graphs, which is empty at first, and
/// this clock, which goes on by a microsecond with each look, and to the end of each wait. Tables
/// of the process's registry have grown with earlier programs, and it remembers handles of theirs;
/// texts and waits depend on the time. See own_process.cpp.
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
  void wait_until(std::chrono::nanoseconds end) {
    if (now_ < end) now_ = end;
  }

  /// That of the program that runs; null on threads that run none, e.g. a worker's.
  [[nodiscard]] static own_process* current() { return runs_programs_ ? current_ : nullptr; }
  /// The calling thread is one of the programs'.
  static void run_programs_here() { runs_programs_ = true; }

 private:
  std::shared_ptr<graph_registry> registry_ = std::make_shared<graph_registry>();
  std::chrono::nanoseconds now_ = std::chrono::hours(1);  // 0 would mean: no time
  static inline own_process* current_ = nullptr;
  static inline thread_local bool runs_programs_ = false;
};

}  // namespace escrow::test
