// A call that may block, on a thread of its own.
#pragma once

#include <atomic>
#include <functional>
#include <thread>
#include <utility>

#include "status.hpp"

namespace escrow::test {

/// Makes a call on a thread of its own. Its end waits for the call's.
class call_elsewhere {
 public:
  explicit call_elsewhere(std::function<cudaError_t()> call)
      : caller_([this, made = std::move(call)] {
          status_ = made();
          // Release: a reader sees the status, and what the call wrote before it returned.
          returned_.store(true, std::memory_order_release);
        }) {}

  [[nodiscard]] bool stays_blocked() const {
    return stays_false([this] { return has_returned(); });
  }
  [[nodiscard]] bool succeeds_soon() const {
    return wait_until([this] { return has_returned(); }) && status_ == cudaSuccess;
  }

 private:
  [[nodiscard]] bool has_returned() const { return returned_.load(std::memory_order_acquire); }

  cudaError_t status_ = cudaErrorUnknown;
  std::atomic<bool> returned_{false};
  std::jthread caller_;  // the last: it uses the others
};

}  // namespace escrow::test
