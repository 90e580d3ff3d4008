// Threads that do the same thing at the same time, timed.
#pragma once

#include <atomic>
#include <barrier>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace escrow::bench {

// What: threads that start each round together. Each sets itself up once, times its part of a round
//   itself, and tidies up after it, outside the time.
// Thread safety: one thread, the one that made it.
// Memory ordering: what a thread of the team did in a round happens before the end of round().
// Lifetime: the destructor ends the threads.
// Errors: what a thread throws comes out of round() or the constructor.
class thread_team {
 public:
  // What one thread does: `timed` is timed, `after` is not.
  struct part {
    std::function<void()> timed;
    std::function<void()> after;
  };

  // `make_part` is called on each thread.
  thread_team(int threads, std::function<part()> make_part);
  thread_team(thread_team&&) = delete;
  ~thread_team();

  // Runs one round and returns the seconds that the slowest thread took.
  [[nodiscard]] double round();

 private:
  void run(std::function<part()> const& make_part, std::size_t index);
  // Runs `step` unless a thread has failed, and keeps what it throws.
  void guarded(std::function<void()> const& step);
  void start_together();
  void rethrow();

  int const count_;
  std::barrier<> gate_;
  std::atomic<int> started_{0};
  std::atomic<bool> has_failed_{false};
  bool is_ending_ = false;       // written by the owner before the gate, read behind it
  std::vector<double> seconds_;  // written by each thread before the gate, read behind it
  std::mutex mutex_;             // guards error_
  std::exception_ptr error_;
  std::vector<std::thread> threads_;
};

}  // namespace escrow::bench
