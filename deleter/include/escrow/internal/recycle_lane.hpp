// SPDX-License-Identifier: Apache-2.0
// The lane that any thread may process: closed reference sets, shares of slots, deferred releases.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "escrow/internal/ready_event.hpp"
#include "escrow/internal/reference_set.hpp"
#include "escrow/internal/release_queue.hpp"

namespace escrow::inline v0_2 {

// Runs no user destructor, so a claim that finds no slot can process it while the worker is
// blocked.
// Thread safety: any thread. What a thread did before a push happens before the recycling.
class recycle_lane {
 public:
  release_queue queue;

  // Recycles all that is queued, and waits for what other threads are recycling.
  void recycle_queued() noexcept;

  void defer(deferred_releases waiting, std::uint64_t epoch) noexcept;
  // What the deferred releases wait for, oldest first: to be asked without the lock. Throws
  // std::bad_alloc.
  [[nodiscard]] std::vector<std::shared_ptr<launch_end>> ends() const;
  // Drops the references that wait for what is done: this queues their sets. `gone`: it will never
  // be known to be done, and they are leaked. In the order of ends().
  struct answered_end {
    std::shared_ptr<launch_end> end;
    ready_answer answer = ready_answer::done;
  };
  void release(std::span<answered_end const> all) noexcept;
  // The worker, in Relaxed mode: asks for each end, and releases.
  void release_done(deleter_accounts& worker) noexcept;
  // Acquire: a thread that counts less then recycles what release() has queued.
  [[nodiscard]] std::size_t deferred() const noexcept {
    return count_.load(std::memory_order_acquire);
  }
  // The device of one deferred release; -1 if there is none.
  [[nodiscard]] int device_of_deferred() const noexcept;
  // The lowest epoch of the deferred releases; the maximum value if there is none.
  [[nodiscard]] std::uint64_t oldest_epoch() const noexcept;

  // The epoch of what this thread is recycling; 0 if nothing.
  [[nodiscard]] std::uint64_t epoch_of_this_thread() const noexcept {
    // Relaxed: a thread compares only with its own value.
    bool const is_here = thread_.load(std::memory_order_relaxed) == std::this_thread::get_id();
    return is_here ? epoch_ : 0;
  }

 private:
  // Guards taking from the queue, recycling, and the list. Held across no CUDA call.
  mutable std::mutex mutex_;
  deferred_releases waiting_;  // oldest first; those of one end stand together
  std::atomic<std::size_t> count_{0};
  std::atomic<std::thread::id> thread_{};  // the recycling one
  std::uint64_t epoch_ = 0;                // that thread's
};

}  // namespace escrow::inline v0_2
