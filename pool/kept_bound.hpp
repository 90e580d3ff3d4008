// SPDX-License-Identifier: Apache-2.0
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

namespace escrow::inline v0_2 {

// What: a factor of the most bytes in use in the last one to two windows, of those that were noted.
//   What a lease has beyond its claim does not count as used. Sizes that are freed and claimed
//   again and again are kept beyond that, up to the most in use once more: half as much in each
//   window.
// Thread safety: any thread.
class kept_bound {
 public:
  // `factor`: 0 if all is kept; may be infinite.
  kept_bound(double factor, std::chrono::nanoseconds window) noexcept
      : factor_(factor), window_(std::clamp(window, std::chrono::nanoseconds(0), longest)) {}

  [[nodiscard]] bool is_any() const noexcept { return factor_ != 0; }
  // So many bytes are in use, and a claim needs `more`.
  void note(std::size_t in_use, std::size_t more) {
    std::size_t const beyond = std::min(in_use, surplus_.load(std::memory_order_relaxed));
    auto const now = clock::now();
    std::lock_guard const lock(mutex_);
    if (now - begin_ >= window_) {
      bool const is_recent = now - begin_ < 2 * window_;
      before_ = is_recent ? std::exchange(most_, 0) : most_ = 0;
      returning_ = is_recent ? returning_ / 2 : 0;
      begin_ = now;
    }
    noted_ = now;
    most_ = std::max(most_, in_use - beyond + more);
  }
  // Whether what most() tells is so new that a claim need not count again.
  [[nodiscard]] bool is_noted_lately() {
    constexpr int parts = 64;
    std::lock_guard const lock(mutex_);
    return clock::now() - noted_ < window_ / parts;
  }
  [[nodiscard]] std::size_t most() {
    constexpr auto no_limit = static_cast<double>(std::numeric_limits<std::int64_t>::max());
    std::lock_guard const lock(mutex_);
    double const kept = factor_ * static_cast<double>(std::max(most_, before_));
    return static_cast<std::size_t>(std::min(kept + static_cast<double>(returning_), no_limit / 2));
  }
  // A block of so many bytes was freed again and again, and is needed again.
  void add_returning(std::size_t bytes) {
    std::lock_guard const lock(mutex_);
    returning_ = std::min(returning_ + bytes, std::max(most_, before_));
  }
  // A lease got so many bytes beyond its claim, or gave them back.
  void add_surplus(std::size_t bytes) noexcept {
    surplus_.fetch_add(bytes, std::memory_order_relaxed);
  }
  void remove_surplus(std::size_t bytes) noexcept {
    surplus_.fetch_sub(bytes, std::memory_order_relaxed);
  }

 private:
  using clock = std::chrono::steady_clock;

  static constexpr std::chrono::nanoseconds longest = std::chrono::hours(1 << 16);  // twice it fits
  double const factor_;
  std::chrono::nanoseconds const window_;
  std::atomic<std::size_t> surplus_{0};  // of all leases; relaxed: a measure
  std::mutex mutex_;                     // guards all below
  std::size_t most_ = 0;                 // since begin_
  std::size_t before_ = 0;               // in the window before that
  std::size_t returning_ = 0;            // see add_returning()
  clock::time_point begin_ = clock::now();
  clock::time_point noted_;  // when note() was called last
};

}  // namespace escrow::inline v0_2
