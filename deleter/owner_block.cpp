// Nodes know their place in the block, which leads back to it.
#include "owner_block.hpp"

#include <new>

namespace escrow {

retired_owner& owner_block::make(release_hub& hub, release_queue& queue, release_list& others) {
  std::unique_ptr<owner_block> made(new owner_block);
  queue.reserve_places(nodes_max);
  owner_block& block = *made.release();  // its nodes' from here on
  auto const make_node = [&](std::size_t index) {
    constexpr release_node::place_is_reserved reserved;
    return ::new (block.place(index)) retired_owner(reserved, hub, index);
  };
  retired_owner& first = *make_node(0);
  for (std::size_t i = 1; i < nodes_max; ++i) others.push_back(*make_node(i));
  return first;
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
