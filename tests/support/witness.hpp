// A user object that tells whether, where and when its destroy callback ran.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "status.hpp"
#include "wait_until.hpp"

namespace escrow::test {

/// Makes one user object. Its callback runs `action`, then notes its thread. Thread-safe to ask at
/// any time; the callback shares ownership of what it writes to, so a witness may end before its
/// user object does.
class witness {
 public:
  explicit witness(std::function<void()> action = {}) { state_->action = std::move(action); }

  /// The user object, with `references` references that the caller owns.
  [[nodiscard]] cudaUserObject_t make(unsigned references = 1) {
    auto* const shared = new std::shared_ptr<state>{state_};
    cudaUserObject_t result = nullptr;
    cudaError_t const status = cudaUserObjectCreate(&result, shared, &witness::destroyed,
                                                    references, cudaUserObjectNoDestructorSync);
    if (status != cudaSuccess) {
      delete shared;
    }
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
    if (it.action) {
      it.action();
    }
    it.thread = std::this_thread::get_id();
    // Release: publishes the thread and all that the action wrote.
    it.runs.fetch_add(1, std::memory_order_release);
  }

  std::shared_ptr<state> state_ = std::make_shared<state>();
};

}  // namespace escrow::test
