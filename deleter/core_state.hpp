// The inside of a deleter_core, and its thread.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>

#include "escrow/deleter/deleter.hpp"
#include "escrow/detail/deleter_core.hpp"
#include "object_store.hpp"
#include "pending_events.hpp"
#include "recycle_lane.hpp"
#include "release_queue.hpp"
#include "wakeup.hpp"

namespace escrow {

// Owned by the deleter_core. Once its deleter was destroyed, the thread ends with the last use of
// the core, which it frees then.
class worker {
 public:
  explicit worker(deleter_core& core) : core_(core) {}

  // Throws std::system_error. Once.
  void start();
  [[nodiscard]] bool is_running() const noexcept { return thread_.joinable(); }

  // Lets the thread, started if need be, go on until the last use of the core was dropped, and
  // waits for its end unless something `is_owed`. The core may be freed when this returns. If no
  // thread can be started it is leaked, and that is reported.
  void leave_to_itself(bool is_owed) noexcept;

  // From now on passes end when the process exits. For the first core; the others change nothing.
  static void watch_for_exit();
  // Then nothing may be reclaimed any more. Any thread.
  [[nodiscard]] static bool is_process_exiting() noexcept;

 private:
  void run() noexcept;
  void free_core() noexcept;  // frees it, and this
  void rest(bool did_something, bool was_left_alone) noexcept;

  deleter_core& core_;
  std::thread thread_;
  // The thread's own:
  bool is_relaxed_ = false;                            // in Relaxed capture mode
  std::chrono::microseconds interval_{0};              // of the last short sleep
  std::chrono::steady_clock::time_point last_work_{};  // when there was something to do
};

struct deleter_core::state {
  state(deleter_core& its_core, deleter_options given)
      : core(its_core), options(std::move(given)), store(its_core, destroyed), thread(its_core) {}
  state(state&&) = delete;

  // One pass: recycles, looks at events, reclaims. Returns how much was reclaimed; 0 at once if
  // another thread is in a pass, or the process is exiting. `is_thread_relaxed`: whether the thread
  // is in Relaxed capture mode; if not it is put there for good, and that is noted.
  std::size_t guarded_pass(bool& is_thread_relaxed) noexcept;
  [[nodiscard]] release_queue& queue_of(release_lane lane) noexcept {
    return lane == release_lane::recycle ? recycled.queue : destroyed;
  }
  // Whether a pass would find nothing that has arrived since the last one.
  [[nodiscard]] bool nothing_arrived() const noexcept;
  // The epoch of what the calling thread pushes: what a reclaim releases belongs to what was
  // reclaimed.
  [[nodiscard]] std::uint64_t epoch_of_push() const noexcept;
  [[nodiscard]] bool is_reclaiming_here() const noexcept {
    // Relaxed: a thread finds only itself here.
    return reclaiming_thread.load(std::memory_order_relaxed) == std::this_thread::get_id();
  }

  deleter_core& core;
  deleter_options const options;

  recycle_lane recycled;
  release_queue destroyed;
  object_store store;
  wakeup_store::loan const bell = wakeup_store::take();

  // What can still push: the deleter, reclaimables, pools. Release when dropped, acquire where the
  // worker reads it before it frees the core: what was done with the core happens before its end.
  alignas(64) std::atomic<std::size_t> uses{0};

  // Drains. Every push notes the epoch, a drain begins the next one, and waits until nothing of
  // earlier ones is left. Acquire and release: a pass that sees the drain's epoch sees all that was
  // pushed before the drain.
  std::atomic<std::uint64_t> epoch{1};
  std::mutex drain_mutex;  // guards `drained`
  std::condition_variable drain_ended;
  std::uint64_t drained = 0;                 // nothing of this epoch or an earlier one is left
  std::atomic<std::uint64_t> seen_epoch{1};  // of the last pass: relaxed, as the wakeup orders it

  // The thread that is in a pass. Acquire to enter and release to leave, as a lock that no thread
  // waits for.
  std::atomic<std::thread::id> reclaiming_thread{};
  std::atomic<bool> has_pending{false};  // what the last pass left
  worker thread;

  std::atomic<bool> refuses{false};  // relaxed: a late retire() may still slip in, and is served
  std::atomic<bool> is_left_alone{false};  // release by the deleter's end, acquire by the worker
  deleter_core* next_orphan = nullptr;     // link of the list of these; see worker.cpp

  // Counts for people: relaxed, all of them.
  std::atomic<std::uint64_t> reclaimed{0};
  std::atomic<std::uint64_t> pending{0};
  std::atomic<std::int64_t> in_graphs{0};
  std::atomic<std::uint64_t> leaked{0};
  std::atomic<std::uint64_t> errors{0};

  // Of the thread that is in a pass:
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
  std::uint64_t pass_epoch = 0;  // of what is being reclaimed; before that, the pass's
  bool is_postponed = false;     // what is being reclaimed waits for an event again
  int pass_device = -1;          // current on this thread, as far as is known; -1: not known
  int known_device = -1;         // of the last thing that arrived
};

}  // namespace escrow
