// SPDX-License-Identifier: Apache-2.0
// A call that may block, on a thread of its own.
#pragma once

#include <atomic>
#include <functional>
#include <thread>
#include <utility>

#include "status.hpp"

namespace escrow::test {

/// Makes a call on a thread of its own, at once, or when it is told to: a thread's first call may
/// block by itself, so it makes another one before. Its end waits for the call's.
class call_elsewhere {
 public:
  enum class at { once, go };

  explicit call_elsewhere(std::function<cudaError_t()> call, at when = at::once)
      : may_go_(when == at::once), caller_([this, made = std::move(call)] {
          must(cudaStreamQuery(cudaStreamPerThread));
          is_ready_.store(true);
          must(wait_until([this] { return may_go_.load(); }), "told to go");
          status_ = made();
          // Release: a reader sees the status, and what the call wrote before it returned.
          returned_.store(true, std::memory_order_release);
        }) {}

  [[nodiscard]] bool is_ready() const {
    return wait_until([this] { return is_ready_.load(); });
  }
  void go() { may_go_.store(true); }

  [[nodiscard]] bool stays_blocked() const {
    return stays_false([this] { return has_returned(); });
  }
  [[nodiscard]] bool succeeds_soon() const {
    return wait_until([this] { return has_returned(); }) && status_ == cudaSuccess;
  }

 private:
  [[nodiscard]] bool has_returned() const { return returned_.load(std::memory_order_acquire); }

  std::atomic<bool> may_go_;
  std::atomic<bool> is_ready_{false};
  cudaError_t status_ = cudaErrorUnknown;
  std::atomic<bool> returned_{false};
  std::jthread caller_;  // the last: it uses the others
};

}  // namespace escrow::test
