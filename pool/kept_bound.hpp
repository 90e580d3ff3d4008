// How many bytes a pool keeps of what was in use lately.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <mutex>
#include <utility>

#include "escrow/version.hpp"

namespace escrow::inline v0_1 {

// What: a factor of the most bytes in use in the last one to two windows, of those that were noted.
//   What a lease has beyond its claim does not count as used.
// Thread safety: any thread.
class kept_bound {
 public:
  // `factor`: 0 if all is kept; may be infinite.
  kept_bound(double factor, std::chrono::nanoseconds window) noexcept
      : factor_(factor), window_(std::clamp(window, std::chrono::nanoseconds(0), longest)) {}

  [[nodiscard]] bool is_any() const noexcept { return factor_ != 0; }
  // The bound, with `in_use` and a claim of `more` noted.
  [[nodiscard]] std::size_t most(std::size_t in_use, std::size_t more) {
    std::size_t const beyond = std::min(in_use, surplus_.load(std::memory_order_relaxed));
    constexpr auto no_limit = static_cast<double>(std::numeric_limits<std::int64_t>::max());
    double const used = static_cast<double>(peak(in_use - beyond + more));
    return static_cast<std::size_t>(std::min(factor_ * used, no_limit / 2));
  }
  // A lease got so many bytes beyond its claim, or gave them back.
  void add_surplus(std::size_t bytes) noexcept {
    surplus_.fetch_add(bytes, std::memory_order_relaxed);
  }
  void remove_surplus(std::size_t bytes) noexcept {
    surplus_.fetch_sub(bytes, std::memory_order_relaxed);
  }

 private:
  [[nodiscard]] std::size_t peak(std::size_t bytes) {
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

  static constexpr std::chrono::nanoseconds longest = std::chrono::hours(1 << 16);  // twice it fits
  double const factor_;
  std::chrono::nanoseconds const window_;
  std::atomic<std::size_t> surplus_{0};  // of all leases; relaxed: a measure
  std::mutex mutex_;                     // guards all below
  std::size_t most_ = 0;                 // since begin_
  std::size_t before_ = 0;               // in the window before that
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace escrow::inline v0_1
