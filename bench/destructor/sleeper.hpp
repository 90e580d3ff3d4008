// Seeing from outside whether a thread of this process sleeps.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

namespace escrow::bench {

// What: a thread of this process, watched through /proc.
// Thread safety: a value; one thread at a time.
// Lifetime: the watched thread must live as long as this.
// Errors: std::runtime_error if /proc cannot be read.
class sleeper {
 public:
  // The thread of this name, which must be alone in having it.
  explicit sleeper(std::string const& thread_name);
  // The thread with this id, as gettid() has it.
  explicit sleeper(int thread_id) : folder_("/proc/self/task/" + std::to_string(thread_id)) {}

  // Waits until the thread sleeps; false if it did not within `bound`.
  [[nodiscard]] bool wait(std::chrono::nanoseconds bound) const;
  // How often it has gone to sleep by itself so far.
  [[nodiscard]] std::size_t sleeps() const;

 private:
  [[nodiscard]] bool is_asleep() const;

  std::string folder_;
};

}  // namespace escrow::bench
