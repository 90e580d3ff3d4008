// A thread that synchronizes the device in a loop, which kills each capture (measured).
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <thread>

namespace escrow::test {

/// From its making to stop(), or to its end.
class synchronizing_thread {
 public:
  synchronizing_thread() = default;
  synchronizing_thread(synchronizing_thread&&) = delete;
  ~synchronizing_thread() { is_over_.store(true, std::memory_order_relaxed); }

  /// Call it once, before the counts are read.
  void stop() {
    is_over_.store(true, std::memory_order_relaxed);
    thread_.join();
  }
  [[nodiscard]] int failed() const { return failed_; }
  [[nodiscard]] int synchronized() const { return synchronized_; }

 private:
  std::atomic<bool> is_over_{false};
  int failed_ = 0;  // written by the thread, read after stop()
  int synchronized_ = 0;
  std::jthread thread_{[this] {
    while (!is_over_.load(std::memory_order_relaxed)) {
      (cudaDeviceSynchronize() == cudaSuccess ? synchronized_ : failed_)++;
    }
  }};
};

}  // namespace escrow::test
