// The lane that any thread may run: sets of graphs, shares of slots, and execs that still run.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <thread>

#include "escrow/detail/reference_set.hpp"
#include "release_queue.hpp"

namespace escrow {

// Nothing in here runs a destructor of the user, so that a claim which finds no slot may run it
// while the worker is blocked.
// Thread safety: any thread. Memory order: what a thread did before a push happens before the
// recycling.
class recycle_lane {
 public:
  release_queue queue;

  // Recycles all that is queued. What other threads were recycling is done, too, when this returns.
  void recycle_queued() noexcept;

  void defer(deferred_releases waiting, std::uint64_t epoch) noexcept;
  // The worker, with its core: drops the references of all releases whose event is done; their sets
  // are in the queue then. Returns how many. The thread is in Relaxed capture mode, also below.
  std::size_t poll_deferred(deleter_core& its) noexcept;
  // Any thread: the same for the first one whose event is done, of those behind `last_asked`, which
  // is 0 at first and goes on to it. False if there is none. Only the worker asks a caller's event,
  // which may be destroyed as soon as it is done, and judges events that will never answer.
  bool release_next(std::uint64_t& last_asked) noexcept;
  // Relaxed: the worker looks again after the wakeup's exchange with the thread that deferred.
  [[nodiscard]] std::size_t deferred() const noexcept {
    return count_.load(std::memory_order_relaxed);
  }
  // The device of one of them; -1 if there is none.
  [[nodiscard]] int device_of_deferred() const noexcept;
  // The lowest epoch of the deferred; the highest possible one if there is none.
  [[nodiscard]] std::uint64_t oldest_epoch() const noexcept;

  // The epoch of what the calling thread recycles now; 0 if it recycles nothing.
  [[nodiscard]] std::uint64_t epoch_of_this_thread() const noexcept {
    // Relaxed: a thread finds only itself here.
    bool const is_here = thread_.load(std::memory_order_relaxed) == std::this_thread::get_id();
    return is_here ? epoch_ : 0;
  }

 private:
  struct question;
  [[nodiscard]] std::span<question> next_questions(std::span<question> to, std::uint64_t after,
                                                   bool is_worker) const noexcept;
  std::size_t release(std::span<question const> asked) noexcept;

  // Guards the taking from the queue, the recycling and the list. Held across no CUDA call.
  mutable std::mutex mutex_;
  deferred_releases waiting_;  // in the order of their serials
  std::uint64_t serials_ = 0;
  std::atomic<std::size_t> count_{0};
  std::atomic<std::thread::id> thread_{};  // that recycles
  std::uint64_t epoch_ = 0;                // that thread's
};

}  // namespace escrow
