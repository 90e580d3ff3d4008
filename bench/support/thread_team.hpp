// SPDX-License-Identifier: Apache-2.0
// Threads that do the same thing at the same time, timed.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <barrier>
#include <exception>
#include <thread>

#include "bench.hpp"

namespace escrow::bench {

// Threads that start each round together. Each sets itself up once, and times its part of a round
// itself. All work of the device is done, outside the time, before a round ends.
// Thread safety: one thread, the one that made it; what the team did in a round happens before its
//   end.
// Errors: what a thread throws comes out of round().
class thread_team {
 public:
  using part = std::function<void()>;

  // `make_part(NUMBER)` is called on each thread.
  thread_team(int threads, std::function<part(std::size_t)> const& make_part)
      : count_(threads), gate_(threads + 1), all_(static_cast<std::size_t>(threads)) {
    for (std::size_t i = 0; i < all_.size(); ++i) {
      threads_.emplace_back([=, this] { run([=] { return make_part(i); }, all_[i]); });
    }
    gate_.arrive_and_wait();
  }
  thread_team(thread_team&&) = delete;
  ~thread_team() {
    is_ending_ = true;
    gate_.arrive_and_wait();
    for (std::thread& each : threads_) each.join();
  }

  // Runs one round and returns the seconds that the slowest thread took.
  [[nodiscard]] double round() {
    // Relaxed: the gate orders it before the threads' next step.
    started_.store(0, std::memory_order_relaxed);
    gate_.arrive_and_wait();
    gate_.arrive_and_wait();
    double slowest = 0;
    for (member const& each : all_) {
      if (each.error) std::rethrow_exception(each.error);
      slowest = std::max(slowest, each.seconds);
    }
    test::must(cudaDeviceSynchronize());
    return slowest;
  }

 private:
  // Written by its thread before the gate, read behind it.
  struct member {
    double seconds = 0;
    std::exception_ptr error;
  };

  void run(std::function<part()> const& make_mine, member& self) {
    part mine;
    guarded(self, [&] { mine = make_mine(); });
    gate_.arrive_and_wait();
    while (true) {
      gate_.arrive_and_wait();
      if (is_ending_) return;
      // The gate wakes its threads one after the other; those that are up wait for the rest here.
      // Relaxed: only the count matters.
      started_.fetch_add(1, std::memory_order_relaxed);
      while (started_.load(std::memory_order_relaxed) < count_) std::this_thread::yield();
      guarded(self, [&] { self.seconds = us_of(mine) * 1e-6; });
      gate_.arrive_and_wait();
    }
  }

  // Runs `step` unless the thread has failed, and keeps what it throws.
  template <class Step>
  static void guarded(member& self, Step const& step) {
    if (self.error) return;
    try {
      step();
    } catch (...) {
      self.error = std::current_exception();
    }
  }

  int const count_;
  std::barrier<> gate_;
  std::atomic<int> started_{0};
  bool is_ending_ = false;  // written by the owner before the gate, read behind it
  std::vector<member> all_;
  std::vector<std::thread> threads_;
};

}  // namespace escrow::bench
