// SPDX-License-Identifier: Apache-2.0
// What a deleter reports, leaks and counts.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>

#include "escrow/detail/reclaimable.hpp"

namespace escrow::inline v0_2 {

// What: the part of a deleter that reports errors, leaks things, and counts. All others use it.
// Thread safety: any thread. Lifetime: the deleter_core's.
class deleter_accounts {
 public:
  deleter_accounts() = default;
  deleter_accounts(deleter_accounts&&) = delete;

  // Whom errors are reported to; empty: standard error. Throws std::bad_alloc.
  void set_on_error(std::function<void(std::exception const&)> handler);
  // Reports an error, and counts it; only that once the process ends. Takes a short lock.
  void report(std::exception const& error) noexcept;
  void report(cudaError_t status, char const* api) noexcept;
  // Leaks a thing, with all that it refers to, and counts it: it will never be known when the GPU
  // is done with it. It must be in no queue. Takes a short lock.
  static void leak(reclaimable& unknown) noexcept;

  // Statistics: relaxed.
  void count_leaked() noexcept { leaked_.fetch_add(1, std::memory_order_relaxed); }
  void count_reclaimed() noexcept { reclaimed_.fetch_add(1, std::memory_order_relaxed); }
  // Counts things that graphs and execs hold: +1 when taken, -1 when reclaimed.
  void count_in_graphs(int change) noexcept {
    in_graphs_.fetch_add(change, std::memory_order_relaxed);
  }
  [[nodiscard]] std::uint64_t reclaimed() const noexcept {
    return reclaimed_.load(std::memory_order_relaxed);
  }
  [[nodiscard]] std::uint64_t leaked() const noexcept {
    return leaked_.load(std::memory_order_relaxed);
  }
  [[nodiscard]] std::uint64_t errors() const noexcept {
    return errors_.load(std::memory_order_relaxed);
  }
  [[nodiscard]] std::uint64_t in_graphs() const noexcept {
    return static_cast<std::uint64_t>(in_graphs_.load(std::memory_order_relaxed));
  }

  // During process exit nothing may be reclaimed (worker.cpp).
  [[nodiscard]] static bool is_process_exiting() noexcept;

 protected:
  ~deleter_accounts();

 private:
  struct error_handler;

  std::mutex on_error_mutex_;  // guards on_error_; not held while it is called or destroyed
  std::shared_ptr<error_handler> on_error_;  // null: none

  // Statistics: relaxed.
  std::atomic<std::uint64_t> reclaimed_{0};
  std::atomic<std::int64_t> in_graphs_{0};
  std::atomic<std::uint64_t> leaked_{0};
  std::atomic<std::uint64_t> errors_{0};
};

}  // namespace escrow::inline v0_2
