// One pass over the release queue: recycle, look at events, reclaim.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "drain_marker.hpp"
#include "pending_events.hpp"
#include "release_list.hpp"

namespace escrow {

// What the worker does, or the thread that calls poll(): one thread at a time, in Relaxed capture
// mode.
class reclaimer {
 public:
  explicit reclaimer(release_hub& hub) : hub_(hub) {}

  [[nodiscard]] release_hub& hub() const noexcept { return hub_; }
  // Reclaims all that can be reclaimed without waiting; returns how many. `is_thread_relaxed` says
  // whether the calling thread is in Relaxed capture mode. If not, it is put there for good, and
  // that is noted; not before there is a node, whose device is made current first, because the
  // change makes a context.
  std::size_t pass(bool& is_thread_relaxed) noexcept;
  // In a node's `reclaim`: it is not idle, but pending on its ready event again.
  void postpone(release_node& node) noexcept;

  [[nodiscard]] std::uint64_t pending() const noexcept { return pending_.size(); }
  // Whether a later pass may find something without a push: an event, or a marker behind one.
  [[nodiscard]] bool has_pending() const noexcept {
    return pending_.size() != 0 || !ready_.empty() || !markers_.empty();
  }

 private:
  void sort_arrivals() noexcept;
  bool prepare_thread(bool& is_thread_relaxed) noexcept;
  void make_current(int device) noexcept;
  void arrive(drain_marker& marker) noexcept;
  bool reclaim(release_node& node) noexcept;  // false if it was postponed
  void reach_markers() noexcept;

  release_hub& hub_;
  pending_events pending_;
  release_list ready_;    // to be reclaimed in this pass
  release_list markers_;  // that wait for what is older, oldest first
  std::uint64_t sequence_ = 0;
  bool is_postponed_ = false;  // the node that is being reclaimed
  int device_ = -1;            // current on this thread, as far as we set it; -1: not known
};

}  // namespace escrow
