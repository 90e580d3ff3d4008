// The inside of a release_hub.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>

#include "awaited_holds.hpp"
#include "escrow/deleter/release_hub.hpp"
#include "escrow/deleter/retired_owner.hpp"
#include "escrow/detail/spin_lock.hpp"
#include "reclaimer.hpp"
#include "release_queue.hpp"
#include "wakeup_store.hpp"
#include "worker.hpp"

namespace escrow {

struct release_hub::state {
  state(release_hub& hub, deleter_options given)
      : options(std::move(given)), reclaiming(hub), thread(hub) {}
  state(state&&) = delete;

  // What eager retirements of some streams need, so that each costs two short locks and touches no
  // memory that retirements on other streams touch. Destroy callbacks never come here: they use the
  // release queue.
  struct alignas(64) shelf {
    spin_lock lock;     // guards the rest
    release_list idle;  // nodes to be used next, with events of the streams' device
    std::size_t idle_count = 0;
    release_list retired;  // recorded and not yet taken by the worker, oldest first
    // Whether `retired` has any. Written under the lock; read without it by the worker, who goes to
    // sleep only after the wakeup's exchange with who wrote it, or takes the lock anyway.
    std::atomic<bool> has_retired{false};
    // The exception: of the reclaiming thread, nodes to join `idle` after its pass.
    release_list emptied;
    std::size_t emptied_count = 0;
  };
  static constexpr std::size_t idle_max = 16384;  // nodes that a shelf keeps
  static constexpr std::size_t shelf_count = 32;  // what retired_owner::shelf_ can tell

  // The place in `shelves` of what is used with the stream of that id.
  static std::uint8_t shelf_index(std::uint64_t stream) noexcept {
    return static_cast<std::uint8_t>(stream % shelf_count);
  }
  // Makes nodes for a shelf that has none: the first is returned, the others are put there. Throws
  // std::bad_alloc.
  [[nodiscard]] retired_owner& make_owners(release_hub& hub, shelf& of);
  // Whether the worker would find nothing.
  [[nodiscard]] bool nothing_arrived() const noexcept;
  // All that was retired eagerly. Worker.
  [[nodiscard]] release_list take_retired() noexcept;
  // Puts the nodes that a pass emptied on their shelves.
  void shelve_emptied() noexcept;
  // Frees all idle nodes.
  void trim() noexcept;
  // Returns slots to their bins; waits for another thread that is at it, which calls no CUDA.
  void recycle_now() noexcept;
  void recycle_locked() noexcept;
  // One pass of the reclaimer; 0 at once if another thread is in one, or the process is exiting.
  std::size_t guarded_pass(bool& is_thread_relaxed) noexcept;

  deleter_options const options;

  awaited_holds awaited;
  release_queue recycled;
  release_queue destroyed;
  wakeup_store::loan const bell = wakeup_store::take();
  // Who can still push: the deleter, nodes, pools. Release when dropped, acquire where the worker
  // reads it before it frees the hub, so that everything done with the hub happens before its end.
  alignas(64) std::atomic<std::size_t> uses{0};

  std::mutex
      recycle_mutex;  // guards the taking of `recycled`, so that drain() knows when it is done

  // True while a thread is in a pass. Acquire to enter and release to leave, as a lock; nobody
  // waits.
  std::atomic<bool> is_reclaiming{false};
  std::atomic<std::thread::id>
      reclaiming_thread{};  // relaxed: only its own thread finds itself here
  reclaimer reclaiming;
  std::atomic<bool> has_pending{false};  // what the last pass left in the reclaimer
  worker thread;

  std::atomic<bool> refuses{false};    // relaxed: a late retire() may still slip in, and is served
  std::atomic<bool> is_ending{false};  // release by who ends the worker, acquire by the worker
  std::atomic<bool> is_left_alone{false};  // the same
  release_hub* next_orphan = nullptr;      // link of the list of those; see worker.cpp

  std::array<shelf, shelf_count> shelves;

  // Counts for people: relaxed, all of them.
  std::atomic<std::uint64_t> reclaimed{0};
  std::atomic<std::uint64_t> pending{0};
  std::atomic<std::int64_t> in_graphs{0};
  std::atomic<std::uint64_t> held{0};
  std::atomic<std::uint64_t> errors{0};
};

}  // namespace escrow
