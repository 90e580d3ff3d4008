// One thing that graphs hold, with a count of its holders.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include "escrow/deleter/release_node.hpp"

namespace escrow {

// What: a release node that is pushed when its last holder lets go. Holders are user objects, in
//   graphs, and bundles, which stand for many.
// Thread safety: hold() and let_go() from any thread, also in a destroy callback.
// Memory ordering: what each holder did before let_go() happens before the node's reclaim.
// Lifetime: idle with no holder; then from the first hold() until it is reclaimed.
// Capture: calls no CUDA function.
// Errors: the constructor as release_node's.
class graph_reference : public release_node {
 public:
  // One holder more. The caller is a holder itself, or the node is idle.
  void hold() noexcept {
    // Relaxed: nobody else can let the last one go meanwhile.
    holders_.fetch_add(1, std::memory_order_relaxed);
  }
  // The first holder of an idle node.
  void hold_first() noexcept { holders_.store(1, std::memory_order_relaxed); }  // as in hold()
  // One holder less. The last one lets go what goes along, and pushes the node, which may be gone
  // then.
  void let_go() noexcept {
    // Release for what this holder did, acquire for what the others did, by the one who pushes.
    if (holders_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    let_go_parts();
    push();
  }

  // `part`, whose only holder the caller is, is let go where this is pushed. Nobody holds this yet.
  void take_along(graph_reference& part) noexcept { part.next_ = std::exchange(next_, &part); }
  // The same at once, for a node that nobody holds.
  void let_go_parts() noexcept {
    release_node* next = std::exchange(next_, nullptr);
    while (next != nullptr) {
      auto& part = static_cast<graph_reference&>(*next);
      next = std::exchange(part.next_, nullptr);
      part.let_go();
    }
  }

  // Whether it is a pool's slot (slot_reference), else an owner.
  [[nodiscard]] bool is_slot() const noexcept { return lane() == release_lane::recycle; }

 protected:
  graph_reference(release_hub& hub, release_lane lane, int device, reclaim_function reclaim)
      : release_node(hub, lane, device, reclaim) {}
  graph_reference(place_is_reserved reserved, release_hub& hub, release_lane lane, int device,
                  reclaim_function reclaim) noexcept
      : release_node(reserved, hub, lane, device, reclaim) {}
  ~graph_reference() = default;

 private:
  friend class graph_registry;

  std::uint64_t graph_id_ = 0;  // where the registry has it: guarded by the registry; 0: nowhere
  std::atomic<std::uint32_t> holders_{0};
};

// What: a graph's reference to a pool's slot, which can say what it is.
// Thread safety, Memory ordering, Lifetime, Capture, Errors: as graph_reference; label() and
//   bytes() while it is held.
class slot_reference : public graph_reference {
 public:
  // The pool's label.
  [[nodiscard]] virtual std::string_view label() const noexcept = 0;
  // The size of the resource in bytes; 0 if the pool does not know.
  [[nodiscard]] virtual std::size_t bytes() const noexcept = 0;

 protected:
  slot_reference(release_hub& hub, int device, reclaim_function reclaim)
      : graph_reference(hub, release_lane::recycle, device, reclaim) {}
  ~slot_reference() = default;
};

}  // namespace escrow
