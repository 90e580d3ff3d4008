// A node that allocates memory for its graph.
#pragma once

#include <cstddef>

#include "escrow/graph/node.hpp"

namespace escrow {

// What: the node, and the address that the memory has at each launch, from this node to the one
//   that frees it.
// Thread safety, Memory ordering, Lifetime, Capture, Errors: as node.
class allocation : public node {
 public:
  [[nodiscard]] void* address() const noexcept { return address_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

 private:
  friend class insertion_point;

  allocation(node const& made, void* address, std::size_t bytes) noexcept
      : node(made), address_(address), bytes_(bytes) {}

  void* address_;
  std::size_t bytes_;
};

}  // namespace escrow
