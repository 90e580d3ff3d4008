// SPDX-License-Identifier: Apache-2.0
// The part of a deleter that outlives it: queues, store, worker, counts.
#pragma once

#include <cuda_runtime_api.h>
#include <sys/types.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <concepts>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>

#include "escrow/core/capture.hpp"
#include "escrow/core/error.hpp"
#include "escrow/deleter/deleter_options.hpp"
#include "escrow/detail/reclaimable.hpp"
#include "escrow/detail/retired_object.hpp"
#include "escrow/internal/deleter_accounts.hpp"
#include "escrow/internal/object_store.hpp"
#include "escrow/internal/pending_events.hpp"
#include "escrow/internal/recycle_lane.hpp"
#include "escrow/internal/release_queue.hpp"
#include "escrow/internal/wakeup.hpp"

namespace escrow::inline v0_2 {

// What: receives all releases of one deleter. Everything that can still push has a use of it: the
//   deleter, every reclaimable, every pool. The worker frees it after the last use was dropped.
// Thread safety: any thread may call anything that is not marked as the worker's.
// Capture: capture-safe. Recycling of execs and take_retired_object() call CUDA.
class deleter_core : public deleter_accounts {
 public:
  explicit deleter_core(deleter_options options);
  deleter_core(deleter_core&&) = delete;
  ~deleter_core();

  // Adds or drops a use. For add_use() the caller has a use itself, or is the deleter.
  void add_use() noexcept {
    uses_.fetch_add(1, std::memory_order_relaxed);  // relaxed: the caller's use stays meanwhile
  }
  void drop_use() noexcept;

  // False once its deleter was stopped or destroyed: it accepts nothing new.
  [[nodiscard]] bool is_open() const noexcept {
    return !refuses_.load(std::memory_order_relaxed);  // see there
  }

  // Returns queued slots to their pools, and waits for those that other threads are recycling, so
  // that no claim waits for a destructor that blocks the worker. Calls no CUDA function.
  void recycle_queued() noexcept { recycled_.recycle_queued(); }
  // The same, then for the slots of execs whose last launch is done, one exec after the other,
  // oldest first, until `is_enough()`. Asks once about each last launch.
  template <std::predicate Enough>
  void recycle_until(Enough is_enough) noexcept;
  void recycle() noexcept {  // the same for all
    recycle_until([] { return false; });
  }
  // For a claim that finds no memory: whether a wait for the worker may help. Not on the worker
  // itself, nor if nothing is left to be reclaimed.
  [[nodiscard]] bool may_reclaim() const noexcept;
  // Of deleter::global(); null if nothing has asked for that yet.
  [[nodiscard]] static deleter_core* global_or_null() noexcept;

  // Each worker calls it before it sleeps, in Relaxed capture mode; while it returns true, the
  // worker stays awake and calls it again. For the whole process; null: nothing. Any thread.
  using rest_function = bool (*)() noexcept;
  static void set_at_rest(rest_function call) noexcept;
  // Wakes the worker if it sleeps. Any thread; a system call at most.
  void wake() noexcept { bell_->notify(); }

  // Drops references to sets once their events are done. Takes a short lock.
  void defer(deferred_releases waiting) noexcept;

  // An empty object for an owner retired on the stream with that id (0: no stream). `with_event`
  // adds an event, of the current device if it has none yet. Allocates if the store is empty.
  // Throws std::bad_alloc, cuda_error.
  [[nodiscard]] retired_object& take_retired_object(std::uint64_t stream, bool with_event) {
    return store_.take(*this, stream, with_event);
  }
  // Queues an object with owner and ready event. Takes a short lock: not for destroy callbacks.
  void push_retired(retired_object& retired) noexcept;
  void put_retired_object(retired_object& idle) noexcept { store_.put(idle); }

  // For reclaim functions in the recycle lane: pushes on to `lane`, where a place was reserved.
  void push_to(reclaimable& thing, release_lane lane) noexcept;
  // The worker: reclaims `owner`, which has no references, next.
  void reclaim_next(reclaimable& owner) noexcept;
  // The worker: destroys the owner, while cover_of_reclaim() tells what its event covers.
  void clear_covered(retired_object& owner) noexcept;
  // The worker: as put_retired_object(), at the end of its pass.
  void put_after_pass(retired_object& idle) noexcept { store_.put_after_pass(idle); }
  [[nodiscard]] release_queue& queue_of(release_lane lane) noexcept {
    return lane == release_lane::recycle ? recycled_.queue : destroyed_;
  }

 private:
  friend class deleter;
  friend class reclaimable;

  // The worker thread (worker.cpp).
  void start_worker();  // once; throws std::system_error
  // Makes the thread (started if necessary) run until the core's last use is dropped, and joins it
  // unless something `is_owed`. The core may be freed when this returns. If no thread can be
  // started, the core is leaked and this is reported.
  void leave_to_worker(bool is_owed) noexcept;
  // Stops passes at process exit. Called for each core; only the first call has an effect.
  static void watch_for_exit();
  void run_worker() noexcept;
  void free_orphan() noexcept;  // frees this
  void rest(bool did_something, bool was_left_alone) noexcept;
  static bool is_needed_at_rest() noexcept;

  // One pass: recycles, polls events, reclaims. Returns how many were reclaimed; 0 at once if
  // another thread is in a pass or the process is exiting. `is_thread_relaxed`: whether the thread
  // is in Relaxed capture mode; if not, the pass sets the mode for good, and this flag.
  std::size_t guarded_pass(bool& is_thread_relaxed) noexcept;
  // Whether nothing is left to be reclaimed, and no pass is running.
  [[nodiscard]] bool is_quiet() const noexcept;
  // True if nothing has arrived since the last pass.
  [[nodiscard]] bool nothing_arrived() const noexcept;
  // The epoch for what this thread pushes: during a reclaim, that of the thing being reclaimed.
  [[nodiscard]] std::uint64_t epoch_of_push() const noexcept;
  [[nodiscard]] bool is_reclaiming_here() const noexcept {
    // Relaxed: a thread compares only with its own value.
    return reclaiming_thread_.load(std::memory_order_relaxed) == std::this_thread::get_id();
  }

  // By the thread in a pass (pass.cpp).
  void sort_arrivals() noexcept;
  bool prepare_thread(bool& is_thread_relaxed) noexcept;
  void make_current(int device) noexcept;
  void reclaim(reclaimable& thing) noexcept;
  std::size_t pass(bool& is_thread_relaxed) noexcept;
  void end_drains(std::uint64_t now) noexcept;
  void count_pending() noexcept;

  deleter_options const options_;
  wakeup_store::loan const bell_ = wakeup_store::take();
  // Users that can still push: the deleter, reclaimables, pools. Released on drop and acquired by
  // the worker before it frees the core, so that all work on the core happens before that.
  alignas(64) std::atomic<std::size_t> uses_{0};

  alignas(64) recycle_lane recycled_;
  release_queue destroyed_;
  object_store store_{destroyed_};  // after what its objects use when they are destroyed

  // Each push stores the epoch; a drain starts the next one and waits until nothing of earlier ones
  // is left. Acquire and release: a pass that sees the drain's epoch sees all earlier pushes.
  std::atomic<std::uint64_t> epoch_{1};
  std::mutex drain_mutex_;  // guards `drained_`
  std::condition_variable drain_ended_;
  std::uint64_t drained_ = 0;                 // nothing of this or an earlier epoch is left
  std::atomic<std::uint64_t> seen_epoch_{1};  // of the last pass; relaxed: the wakeup orders it

  // The thread in a pass: a try-lock, with acquire to enter and release to leave.
  std::atomic<std::thread::id> reclaiming_thread_{};
  std::atomic<bool> has_pending_{false};  // what the last pass left

  std::atomic<bool> refuses_{false};        // relaxed: a concurrent retire() may still succeed
  std::atomic<bool> is_left_alone_{false};  // release by ~deleter, acquire by the worker
  deleter_core* next_orphan_ = nullptr;     // link of the list of these; see worker.cpp

  // Without a worker: tells once that nobody polls. Any thread.
  void note_unpolled() noexcept;
  static constexpr std::uint64_t unpolled_told = 64;
  std::atomic<std::uint64_t> unpolled_{0};  // owners retired before the first pass; relaxed
  std::atomic<bool> is_polled_{false};      // there was a pass; relaxed

  // Statistics: relaxed.
  std::atomic<std::uint64_t> pending_{0};
  std::atomic<std::uint64_t> pending_peak_{0};

  // Used only by the thread in a pass:
  pending_events waiting_;
  release_list ready_;                // to be reclaimed in this pass
  std::size_t pass_count_ = 0;        // reclaimed in this pass
  std::uint64_t pass_epoch_ = 0;      // of the thing being reclaimed; before that, the pass's
  bool is_postponed_ = false;         // the thing being reclaimed waits for an event again
  cudaEvent_t pass_ready_ = nullptr;  // the thing's that is being reclaimed
  std::uint64_t pass_stream_ = 0;     // of the event of the thing being reclaimed; 0: none
  int pass_device_ = -1;              // current on this thread; -1: not known
  int known_device_ = -1;             // of the last thing that arrived

  std::thread thread_;  // the worker
  pid_t const process_ = getpid();
  // Used by it only:
  bool is_relaxed_ = false;                // in Relaxed capture mode
  std::chrono::microseconds interval_{0};  // of the last short sleep
  std::chrono::steady_clock::time_point last_work_{};
};

template <std::predicate Enough>
void deleter_core::recycle_until(Enough is_enough) noexcept {
  bool const is_any_deferred = recycled_.deferred() != 0;  // first: else it may be queued next
  recycle_queued();
  if (is_enough() || !is_any_deferred) return;
  try {
    relaxed_capture_scope const relaxed;  // a query could invalidate a capture
    for (auto const& end : recycled_.ends()) {
      if (!succeeded(cudaEventQuery(end->ready.get()))) continue;
      recycled_.release(std::array{recycle_lane::answered_end{end}});
      recycle_queued();
      if (is_enough()) return;
    }
  } catch (std::exception const&) {
    // The worker will query them.
  }
  recycle_queued();  // also what another thread found done
  static_cast<void>(is_enough());
}

}  // namespace escrow::inline v0_2
