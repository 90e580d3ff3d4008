// Owners that tell where, when and how often they were destroyed.
#pragma once

#include <cuda_runtime_api.h>
#include <pthread.h>

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "wait_until.hpp"

namespace escrow::test {

/// What became of one owner. Everything but `destroyed` may be read once `was_destroyed()`.
struct fate {
  std::atomic<int> destroyed{0};
  std::thread::id thread;
  std::string thread_name;
  int device = -1;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::function<void()> action;  // runs in the destructor

  /// Acquire: pairs with the release in ~probe().
  [[nodiscard]] int times() const { return destroyed.load(std::memory_order_acquire); }
  [[nodiscard]] bool was_destroyed() const { return times() != 0; }
  [[nodiscard]] bool wait() const {
    return wait_until([this] { return was_destroyed(); });
  }
};

using fate_ptr = std::shared_ptr<fate>;

[[nodiscard]] inline fate_ptr make_fate(std::function<void()> action = {}) {
  auto result = std::make_shared<fate>();
  result->action = std::move(action);
  return result;
}

/// A move-only owner; the one that was moved to last writes the fate at its end.
class probe {
 public:
  explicit probe(fate_ptr it) : fate_(std::move(it)) {}
  probe(probe&&) noexcept = default;
  probe& operator=(probe&&) = delete;
  ~probe() {
    if (fate_ == nullptr) return;
    if (fate_->action) fate_->action();
    fate_->thread = std::this_thread::get_id();
    std::array<char, 32> name{};
    static_cast<void>(pthread_getname_np(pthread_self(), name.data(), name.size()));
    fate_->thread_name = name.data();
    static_cast<void>(cudaGetDevice(&fate_->device));
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    if (cudaThreadExchangeStreamCaptureMode(&mode) == cudaSuccess) {
      fate_->mode = mode;
      static_cast<void>(cudaThreadExchangeStreamCaptureMode(&mode));
    }
    static_cast<void>(cudaGetLastError());  // a test may have made one of these fail
    // Release: publishes the rest of the fate.
    fate_->destroyed.fetch_add(1, std::memory_order_release);
  }

  /// Whether it is still an owner: it was not moved from.
  [[nodiscard]] bool is_owner() const noexcept { return fate_ != nullptr; }

 private:
  fate_ptr fate_;
};

}  // namespace escrow::test
