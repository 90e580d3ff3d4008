// SPDX-License-Identifier: Apache-2.0
// Owners, and user objects, that tell where, when and how often they were destroyed.
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

#include "status.hpp"

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

/// Makes one user object, and tells whether, where and when its destroy callback ran. That runs
/// `action`, then notes its thread. Thread-safe to ask at any time; the callback shares ownership
/// of what it writes to, so a witness may end before its user object does.
class witness {
 public:
  explicit witness(std::function<void()> action = {}) { state_->action = std::move(action); }

  /// The user object, with `references` references that the caller owns.
  [[nodiscard]] cudaUserObject_t make(unsigned references = 1) {
    auto* const shared = new std::shared_ptr<state>{state_};
    cudaUserObject_t result = nullptr;
    cudaError_t const status = cudaUserObjectCreate(&result, shared, &witness::destroyed,
                                                    references, cudaUserObjectNoDestructorSync);
    if (status != cudaSuccess) delete shared;
    must(status);
    return result;
  }

  /// Makes the user object and moves its one reference to `graph`.
  void move_to(cudaGraph_t graph) {
    must(cudaGraphRetainUserObject(graph, make(), 1, cudaGraphUserObjectMove));
  }

  /// How many times the callback ran. Acquire: what it wrote before is visible.
  [[nodiscard]] int runs() const { return state_->runs.load(std::memory_order_acquire); }
  [[nodiscard]] bool ran() const { return runs() != 0; }
  /// Waits for the callback, within the usual bound.
  [[nodiscard]] bool wait() const {
    return wait_until([this] { return ran(); });
  }
  /// The thread that ran the callback. Only after it ran.
  [[nodiscard]] std::thread::id thread() const { return state_->thread; }
  /// Ran exactly once, on the calling thread.
  [[nodiscard]] bool ran_here() const {
    return runs() == 1 && thread() == std::this_thread::get_id();
  }
  /// Ran exactly once, on a thread that is not the calling one.
  [[nodiscard]] bool ran_elsewhere() const {
    return runs() == 1 && thread() != std::this_thread::get_id();
  }

 private:
  struct state {
    std::function<void()> action;
    std::thread::id thread;
    std::atomic<int> runs{0};
  };

  static void CUDART_CB destroyed(void* argument) {
    std::unique_ptr<std::shared_ptr<state>> const shared{
        static_cast<std::shared_ptr<state>*>(argument)};
    state& it = **shared;
    if (it.action) it.action();
    it.thread = std::this_thread::get_id();
    // Release: publishes the thread and all that the action wrote.
    it.runs.fetch_add(1, std::memory_order_release);
  }

  std::shared_ptr<state> state_ = std::make_shared<state>();
};

}  // namespace escrow::test
