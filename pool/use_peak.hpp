// How much was in use lately.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <mutex>
#include <utility>

#include "escrow/version.hpp"

namespace escrow::inline v0_1 {

// The most bytes in use in the last one to two windows, of those that were noted.
// Thread safety: any thread.
class use_peak {
 public:
  explicit use_peak(std::chrono::nanoseconds window) noexcept
      : window_(std::clamp(window, std::chrono::nanoseconds(0), longest)) {}

  [[nodiscard]] std::size_t note(std::size_t bytes) {
    std::lock_guard const lock(mutex_);
    auto const now = std::chrono::steady_clock::now();
    if (now - begin_ >= window_) {
      bool const is_recent = now - begin_ < 2 * window_;
      before_ = is_recent ? std::exchange(most_, 0) : most_ = 0;
      begin_ = now;
    }
    most_ = std::max(most_, bytes);
    return std::max(most_, before_);
  }

 private:
  static constexpr std::chrono::nanoseconds longest = std::chrono::hours(1 << 16);  // twice it fits
  std::chrono::nanoseconds const window_;
  std::mutex mutex_;        // guards all below
  std::size_t most_ = 0;    // since begin_
  std::size_t before_ = 0;  // in the window before that
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace escrow::inline v0_1
