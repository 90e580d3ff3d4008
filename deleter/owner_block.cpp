// Nodes know their place in the block, which leads back to it.
#include "owner_block.hpp"

#include <new>

namespace escrow {

retired_owner& owner_block::make(release_hub& hub, release_list& others) {
  auto* const block = new owner_block;
  retired_owner* first = nullptr;
  for (std::size_t i = 0; i < nodes_max; ++i) {
    try {
      auto* const made = ::new (block->place(i)) retired_owner(hub, static_cast<std::uint8_t>(i));
      // Relaxed: nobody else has any of the nodes yet, and this thread counts as one.
      block->alive_.fetch_add(1, std::memory_order_relaxed);
      if (first == nullptr) {
        first = made;
      } else {
        others.push_back(*made);
      }
    } catch (...) {
      if (first != nullptr) break;
      delete block;
      throw;
    }
  }
  block->drop_node();
  return *first;
}

void owner_block::destroy(retired_owner& node) noexcept {
  std::size_t const index = node.place_;
  auto* const first = reinterpret_cast<std::byte*>(&node) - index * sizeof(retired_owner);
  // The places follow the count, at the alignment of the block.
  auto* const block = std::launder(reinterpret_cast<owner_block*>(first - alignof(retired_owner)));
  static_assert(sizeof(owner_block) == nodes_max * sizeof(retired_owner) + alignof(retired_owner));
  node.~retired_owner();
  block->drop_node();
}

void owner_block::drop_node() noexcept {
  // Release for what was done with this node, acquire for the others', by the one who frees them.
  if (alive_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
}

}  // namespace escrow
