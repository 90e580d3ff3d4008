// The thread that reclaims, and its end.
#pragma once

#include <chrono>
#include <thread>

namespace escrow {

class deleter_core;

// Owned by the deleter_core. The thread ends when it is told to (stop_and_join), or, once its
// deleter was destroyed, with the last use of the core, which it frees then.
class worker {
 public:
  explicit worker(deleter_core& core) : core_(core) {}

  // Starts the thread. Throws std::system_error. Once.
  void start();
  [[nodiscard]] bool is_running() const noexcept { return thread_.joinable(); }

  // Ends the thread, for a core without any use.
  void stop_and_join() noexcept;
  // Lets the thread, started if need be, go on until the last use of the core was dropped. The core
  // may be freed when this returns. If no thread can be started it is leaked, and that is reported.
  void leave_to_itself() noexcept;

  // From now on passes end when the process exits. For the first core; the others change nothing.
  static void watch_for_exit();
  // Whether the process is exiting: nothing may be reclaimed any more. Any thread.
  [[nodiscard]] static bool is_process_exiting() noexcept;

 private:
  void run() noexcept;
  void work() noexcept;
  void free_core() noexcept;  // frees it, and this
  void rest(bool did_something, bool was_left_alone) noexcept;

  deleter_core& core_;
  std::thread thread_;
  // The thread's own:
  bool is_relaxed_ = false;                            // in Relaxed capture mode
  std::chrono::microseconds interval_{0};              // of the last short sleep
  std::chrono::steady_clock::time_point last_work_{};  // when there was something to do
};

}  // namespace escrow
