// What travels from a destroy callback, or from retire(), to the worker.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "escrow/deleter/release_order.hpp"

namespace escrow {

class release_hub;
class release_queue;

// What the worker does with a node: `recycle` is quick, calls no CUDA and never waits behind a
// `destroy`.
enum class release_lane : std::uint8_t { recycle, destroy };

// What: one thing to be reclaimed by the worker. Its place in the release queue is reserved when it
//   is made, so that push() can neither allocate nor fail. Derive from it; `reclaim` gets it back.
//     idle -> push() -> queued -> [pending on its ready event] -> reclaim(node)
//                                        ^--- reclaim_again_after() ---'
// Thread safety: push() may be called by any thread, once each time the node is idle. Everything
//   else needs exclusive access.
// Memory ordering: what a thread did before push() happens before `reclaim` is called.
// Lifetime: the node must stay alive from push() until `reclaim` is called, which may destroy it or
//   leave it idle for its next use. A node keeps its hub alive.
// Capture: push() calls no CUDA function.
// Errors: the constructor throws std::bad_alloc and then has reserved nothing.
class release_node {
 public:
  // Called on the worker with the node's device current and the thread in Relaxed capture mode; a
  // `recycle` may also run on a thread that claims. The node is idle again when it is called.
  using reclaim_function = void (*)(release_node&) noexcept;

  release_node(release_hub& hub, release_lane lane, int device, reclaim_function reclaim);
  release_node(release_node&&) = delete;

  // For one whose place was reserved with those of others.
  struct place_is_reserved {};

  // Hands the node to the worker. Any thread, also from a destroy callback or a host function:
  // lock-free, no allocation, no lock, no CUDA call; wakes the worker if, and only if, it sleeps.
  void push() noexcept;

  // Before push(), in the destroy lane: reclaim only once `ready` is done. `order` lets the worker
  // ask about one event instead of many; empty if it is not known.
  void reclaim_after(cudaEvent_t ready, release_order order) noexcept {
    ready_ = ready;
    order_ = order;
  }

  // In `reclaim`, which then leaves the node alone: reclaim it again once `ready` is done. Who
  // drains goes on waiting for it, however often that happens.
  void reclaim_again_after(cudaEvent_t ready) noexcept;

  [[nodiscard]] release_hub& hub() const noexcept { return *hub_; }
  [[nodiscard]] release_lane lane() const noexcept { return lane_; }
  [[nodiscard]] int device() const noexcept { return device_; }
  void set_device(int device) noexcept { device_ = device; }

 protected:
  release_node(place_is_reserved reserved, release_hub& hub, release_lane lane, int device,
               reclaim_function reclaim) noexcept;
  ~release_node();

 private:
  friend class drain_marker;
  friend class graph_reference;
  friend class pending_events;
  friend class reclaimer;
  friend class release_hub;
  friend class release_list;

  [[nodiscard]] release_queue& queue() const noexcept;

  release_hub* hub_;
  reclaim_function reclaim_;
  // Link of the one list that the node is in: the worker's, once that has it; before, while graphs
  // hold the node, of what is let go with it.
  release_node* next_ = nullptr;
  cudaEvent_t ready_ = nullptr;  // null: may be reclaimed at once
  release_order order_;
  std::uint64_t sequence_ = 0;  // order of arrival at the worker
  int device_;
  release_lane const lane_;
  bool is_marker_ = false;
  bool is_reported_ = false;  // the failure of its event was reported once
};

}  // namespace escrow
