// A node that travels through the release queue behind everything that a drain() waits for.
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <utility>

#include "escrow/deleter/release_node.hpp"

namespace escrow {

// It makes several trips, because what is reclaimed may let other things go, which then arrive
// behind it. At the first arrival the worker recycles what it finds and sends the marker on at
// once; on the other trips it stays until nothing older is pending: one for each step of the
// longest chain of ours, which is an owner that is an exec, its hold on a bundle, an owner that the
// bundle stood for, and what that let go, an object shared with streams or the resource of a closed
// pool's lease. Slots, also those that nodes shared, are recycled in passing. Shared by the waiting
// thread, which may give up, and the worker.
class drain_marker final : public release_node {
 public:
  explicit drain_marker(release_hub& hub)
      : release_node(hub, release_lane::destroy, -1, [](release_node&) noexcept {}) {
    is_marker_ = true;
  }

  // Sends it off. It keeps itself alive until it is reached.
  static void send(std::shared_ptr<drain_marker> const& marker) noexcept {
    marker->self_ = marker;
    marker->push();
  }

  // Whether it was reached before the end of `timeout`.
  [[nodiscard]] bool wait_for(std::chrono::nanoseconds timeout) {
    std::unique_lock lock(mutex_);
    return reached_.wait_for(lock, timeout, [this] { return is_reached_; });
  }

  // Worker: counts an arrival; whether it is the first.
  [[nodiscard]] bool is_first_arrival() noexcept { return ++arrivals_ == 1; }
  // Worker: nothing older is pending. Sends it on its last trip, or lets the waiting thread go.
  void pass() noexcept {
    if (arrivals_ < trips) return push();
    reach();
  }
  [[nodiscard]] std::uint64_t sequence() const noexcept { return sequence_; }

 private:
  static constexpr int trips = 5;

  // Lets the waiting thread go. May destroy the marker.
  void reach() noexcept {
    std::shared_ptr<drain_marker> const self = std::move(self_);
    std::lock_guard const lock(mutex_);
    is_reached_ = true;
    reached_.notify_all();
  }

  std::mutex mutex_;  // guards is_reached_
  std::condition_variable reached_;
  bool is_reached_ = false;
  int arrivals_ = 0;                    // worker only
  std::shared_ptr<drain_marker> self_;  // set while it travels
};

}  // namespace escrow
