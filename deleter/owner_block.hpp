// Memory for retired owners, several at a time.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "escrow/deleter/retired_owner.hpp"
#include "release_list.hpp"
#include "release_queue.hpp"

namespace escrow {

// What: one allocation for some nodes, since aligned ones are dear; freed with the last of them.
// Thread safety: make() and destroy() from any thread.
// Memory ordering: what was done with each node happens before the block is freed.
// Lifetime: from make() until each of its nodes was destroyed.
// Errors: make() throws std::bad_alloc, and then has made nothing.
class owner_block {
 public:
  static constexpr std::size_t nodes_max = 8;  // what retired_owner::place_ can tell

  // Makes idle nodes of `hub`, with their places in `queue`, and returns the first; the others go
  // to `others`.
  [[nodiscard]] static retired_owner& make(release_hub& hub, release_queue& queue,
                                           release_list& others);
  static void destroy(retired_owner& node) noexcept;

 private:
  friend struct std::default_delete<owner_block>;

  owner_block() = default;
  ~owner_block() = default;
  [[nodiscard]] void* place(std::size_t index) noexcept {
    return places_ + index * sizeof(retired_owner);
  }
  void drop_node() noexcept;

  std::atomic<std::uint32_t> alive_{nodes_max};  // acq_rel: see drop_node()
  alignas(retired_owner) std::byte places_[nodes_max * sizeof(retired_owner)];
};

}  // namespace escrow
