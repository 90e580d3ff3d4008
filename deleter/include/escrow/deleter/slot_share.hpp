// A share of a pool's slot, for a node.
#pragma once

#include <utility>

#include "escrow/deleter/graph_reference.hpp"

namespace escrow {

// What: a share of a slot that is part of what a node keeps, of a graph that is built by hand.
// Thread safety: a value.
// Memory ordering, Capture, Errors: as graph_reference.
// Lifetime: the slot goes home after its lease and all shares; the end of a share only pushes.
class slot_share {
 public:
  slot_share(slot_share&& other) noexcept : held_(std::exchange(other.held_, nullptr)) {}
  slot_share& operator=(slot_share&&) = delete;
  ~slot_share() {
    if (held_ != nullptr) held_->let_go();
  }

  // Ends with `last`, on whichever thread lets go of that: it waits for no owner to be destroyed.
  // Nobody holds `last` yet.
  void end_with(graph_reference& last) noexcept { last.take_along(*std::exchange(held_, nullptr)); }

 private:
  friend class slot_pool;

  // The only holder of `held`.
  explicit slot_share(slot_reference& held) noexcept : held_(&held) { held.hold_first(); }

  slot_reference* held_;
};

}  // namespace escrow
