// SPDX-License-Identifier: Apache-2.0
// What keeps the sets of captured graphs in place of their user objects.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "escrow/detail/reclaimable.hpp"
#include "escrow/version.hpp"

namespace escrow::inline v0_2 {

class reference_set;
using reference_sets = std::vector<ref<reference_set>>;

// What: the sets of the graphs of a pool with pool_options::held_until_closed: no user object
//   references them, so that the graphs and their execs have none, but the pool does until its end.
// Thread safety: any thread.
class kept_sets : public std::enable_shared_from_this<kept_sets> {
 public:
  kept_sets() = default;
  kept_sets(kept_sets&&) = delete;
  ~kept_sets();

  // False once released. Throws std::bad_alloc.
  [[nodiscard]] bool add(reference_set& set);
  // Drops those of a capture that has ended without a graph.
  void drop(std::uint64_t capture_id) noexcept;
  // Gives up the references, which end with what it returns, and refuses sets from now on.
  reference_sets release() noexcept;
  // Leaks the sets, which execs may use, if they were not released. Returns how many things they
  // hold, which it counts as leaked.
  std::size_t leak() noexcept;

 private:
  std::mutex mutex_;  // guards both
  bool is_released_ = false;
  reference_sets sets_;
};

}  // namespace escrow::inline v0_2
