// The inside of a deleter_core.
#pragma once

#include <atomic>
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
#include "worker.hpp"

namespace escrow {

struct deleter_core::state {
  state(deleter_core& its_core, deleter_options given)
      : core(its_core), options(std::move(given)), store(its_core, destroyed), thread(its_core) {}
  state(state&&) = delete;

  // One pass: recycles, looks at events, reclaims. Returns how much was reclaimed; 0 at once if
  // another thread is in a pass, or the process is exiting. `is_thread_relaxed`: whether the thread
  // is in Relaxed capture mode; if not it is put there for good, and that is noted.
  std::size_t guarded_pass(bool& is_thread_relaxed) noexcept;
  // Whether a pass would find nothing that has arrived since the last one.
  [[nodiscard]] bool nothing_arrived() const noexcept;
  // The epoch of what the calling thread pushes: what a reclaim releases belongs to what was
  // reclaimed.
  [[nodiscard]] std::uint64_t epoch_of_push() const noexcept;
  // Whether the calling thread is in a pass.
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

  // True while a thread is in a pass. Acquire to enter and release to leave, as a lock that no
  // thread waits for.
  std::atomic<bool> is_reclaiming{false};
  std::atomic<std::thread::id> reclaiming_thread{};  // relaxed: see is_reclaiming_here()
  std::atomic<bool> has_pending{false};              // what the last pass left
  worker thread;

  std::atomic<bool> refuses{false};    // relaxed: a late retire() may still slip in, and is served
  std::atomic<bool> is_ending{false};  // release by the thread that ends the worker, acquire by it
  std::atomic<bool> is_left_alone{false};  // the same
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
};

}  // namespace escrow
