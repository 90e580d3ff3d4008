// The thread that reclaims, and its end.
#pragma once

#include <chrono>
#include <thread>

namespace escrow {

class release_hub;

// Owned by the hub. The thread ends when it is told to (stop_and_join), or, once it was left to
// itself, when the last use of the hub has gone: it frees the hub then.
class worker {
 public:
  explicit worker(release_hub& hub) : hub_(hub) {}

  // Starts the thread. Throws std::system_error. Once.
  void start();
  [[nodiscard]] bool is_running() const noexcept { return thread_.joinable(); }

  // Ends the thread, for a hub that nobody uses any more.
  void stop_and_join() noexcept;
  // Lets the thread, started if need be, go on until nobody uses the hub. The hub may be gone when
  // this returns. Without a thread to be had it is leaked, and that is reported.
  void leave_to_itself() noexcept;

  // From now on passes end when the process exits. For the first hub; the others change nothing.
  static void watch_for_exit();
  // Whether the process is exiting: nothing may be reclaimed any more. Any thread.
  [[nodiscard]] static bool is_process_exiting() noexcept;

 private:
  void run() noexcept;
  void work() noexcept;
  void end_hub() noexcept;  // frees it, and this
  void rest(bool did_something, bool was_left_alone) noexcept;

  release_hub& hub_;
  std::thread thread_;
  // The thread's own:
  bool is_relaxed_ = false;                            // in Relaxed capture mode
  std::chrono::microseconds interval_{0};              // of the last short sleep
  std::chrono::steady_clock::time_point last_work_{};  // when there was something to do
};

}  // namespace escrow
