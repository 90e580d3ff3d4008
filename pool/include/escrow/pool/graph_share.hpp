// A node's share of a slot.
#pragma once

#include <utility>

#include "escrow/deleter/graph_reference.hpp"

namespace escrow {

// What: a share of a slot that is part of what a node keeps, of a graph that is built by hand.
// Thread safety: a value.
// Memory ordering, Capture, Errors: as graph_reference.
// Lifetime: the slot goes home after its lease and all shares; the end of a share only pushes.
class graph_share {
 public:
  graph_share(graph_share&& other) noexcept : held_(std::exchange(other.held_, nullptr)) {}
  graph_share& operator=(graph_share&&) = delete;
  ~graph_share() {
    if (held_ != nullptr) held_->let_go();
  }

 private:
  friend class slot_pool;

  explicit graph_share(slot_reference& held) noexcept : held_(&held) { held.hold(); }

  slot_reference* held_;
};

}  // namespace escrow
