// The implementation of deleter_core, and its worker thread.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "escrow/deleter/deleter.hpp"
#include "escrow/detail/deleter_core.hpp"
#include "object_store.hpp"
#include "pending_events.hpp"
#include "recycle_lane.hpp"
#include "release_queue.hpp"
#include "wakeup.hpp"

namespace escrow::inline v0_1 {

// Owned by the deleter_core. Without a deleter, the thread frees the core after its last use.
class worker {
 public:
  explicit worker(deleter_core& core) : core_(core) {}

  void start();  // once; throws std::system_error
  [[nodiscard]] bool is_running() const noexcept { return thread_.joinable(); }

  // Makes the thread (started if necessary) run until the core's last use is dropped, and joins it
  // unless something `is_owed`. The core may be freed when this returns. If no thread can be
  // started, the core is leaked and this is reported.
  void leave_to_itself(bool is_owed) noexcept;

  // Stops passes at process exit. Called for each core; only the first call has an effect.
  static void watch_for_exit();
  // During process exit nothing may be reclaimed. Any thread.
  [[nodiscard]] static bool is_process_exiting() noexcept;

 private:
  void run() noexcept;
  void free_core() noexcept;  // frees it, and this
  void rest(bool did_something, bool was_left_alone) noexcept;

  deleter_core& core_;
  std::thread thread_;
  // Used by the thread only:
  bool is_relaxed_ = false;                // in Relaxed capture mode
  std::chrono::microseconds interval_{0};  // of the last short sleep
  std::chrono::steady_clock::time_point last_work_{};
};

struct ESCROW_LOCAL deleter_core::state {
  using error_handler = std::function<void(std::exception const&)>;

  state(deleter_core& its_core, deleter_options given)
      : core(its_core), options(std::move(given)), store(its_core, destroyed), thread(its_core) {
    set_on_error(options.on_error);
  }
  state(state&&) = delete;

  // One pass: recycles, polls events, reclaims. Returns how many were reclaimed; 0 at once if
  // another thread is in a pass or the process is exiting. `is_thread_relaxed`: whether the thread
  // is in Relaxed capture mode; if not, the pass sets the mode for good, and this flag.
  std::size_t guarded_pass(bool& is_thread_relaxed) noexcept;
  [[nodiscard]] release_queue& queue_of(release_lane lane) noexcept {
    return lane == release_lane::recycle ? recycled.queue : destroyed;
  }
  // True if nothing has arrived since the last pass.
  [[nodiscard]] bool nothing_arrived() const noexcept;
  // The epoch for what this thread pushes: during a reclaim, that of the thing being reclaimed.
  [[nodiscard]] std::uint64_t epoch_of_push() const noexcept;
  [[nodiscard]] bool is_reclaiming_here() const noexcept {
    // Relaxed: a thread compares only with its own value.
    return reclaiming_thread.load(std::memory_order_relaxed) == std::this_thread::get_id();
  }

  void set_on_error(error_handler handler);

  deleter_core& core;
  deleter_options const options;
  std::mutex on_error_mutex;  // guards on_error; not held while it is called or destroyed
  std::shared_ptr<error_handler> on_error;  // null: none

  recycle_lane recycled;
  release_queue destroyed;
  object_store store;
  wakeup_store::loan const bell = wakeup_store::take();

  // Users that can still push: the deleter, reclaimables, pools. Released on drop and acquired by
  // the worker before it frees the core, so that all work on the core happens before that.
  alignas(64) std::atomic<std::size_t> uses{0};

  // Each push stores the epoch; a drain starts the next one and waits until nothing of earlier ones
  // is left. Acquire and release: a pass that sees the drain's epoch sees all earlier pushes.
  std::atomic<std::uint64_t> epoch{1};
  std::mutex drain_mutex;  // guards `drained`
  std::condition_variable drain_ended;
  std::uint64_t drained = 0;                 // nothing of this or an earlier epoch is left
  std::atomic<std::uint64_t> seen_epoch{1};  // of the last pass; relaxed: the wakeup orders it

  // The thread in a pass: a try-lock, with acquire to enter and release to leave.
  std::atomic<std::thread::id> reclaiming_thread{};
  std::atomic<bool> has_pending{false};  // what the last pass left
  worker thread;

  std::atomic<bool> refuses{false};        // relaxed: a concurrent retire() may still succeed
  std::atomic<bool> is_left_alone{false};  // release by ~deleter, acquire by the worker
  deleter_core* next_orphan = nullptr;     // link of the list of these; see worker.cpp

  // Statistics: relaxed.
  std::atomic<std::uint64_t> reclaimed{0};
  std::atomic<std::uint64_t> pending{0};
  std::atomic<std::uint64_t> pending_peak{0};
  std::atomic<std::int64_t> in_graphs{0};
  std::atomic<std::uint64_t> leaked{0};
  std::atomic<std::uint64_t> errors{0};

  // Used only by the thread in a pass:
  void sort_arrivals() noexcept;
  bool prepare_thread(bool& is_thread_relaxed) noexcept;
  void make_current(int device) noexcept;
  void reclaim(reclaimable& thing) noexcept;
  std::size_t pass(bool& is_thread_relaxed) noexcept;
  void end_drains(std::uint64_t now) noexcept;
  void count_pending() noexcept;

  pending_events waiting;
  release_list ready;            // to be reclaimed in this pass
  std::size_t pass_count = 0;    // reclaimed in this pass
  std::uint64_t pass_epoch = 0;  // of the thing being reclaimed; before that, the pass's
  bool is_postponed = false;     // the thing being reclaimed waits for an event again
  int pass_device = -1;          // current on this thread; -1: not known
  int known_device = -1;         // of the last thing that arrived
};

}  // namespace escrow::inline v0_1
