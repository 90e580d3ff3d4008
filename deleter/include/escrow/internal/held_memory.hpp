// SPDX-License-Identifier: Apache-2.0
// What memory graphs hold: for audits.
#pragma once

#include <cstddef>
#include <unordered_set>
#include <vector>

#include "escrow/version.hpp"

namespace escrow::inline v0_2 {

struct group_order;

// Of one graph, or of several together.
struct held_memory {
  struct range {
    group_order const* of;  // the arena's; only compared
    std::size_t begin;
    std::size_t end;
  };

  std::unordered_set<void const*> slots = {};  // by slot_reference::slot_address()
  std::vector<range> ranges = {};              // of arenas
  bool has_owners = false;                     // which may own leases
  bool may_hold_more = false;                  // plain copies, hoisted graphs: not all is known

  // Whether one of them has both offsets.
  [[nodiscard]] bool has_range(group_order const* of, std::size_t first,
                               std::size_t last) const noexcept {
    for (range const& each : ranges) {
      if (each.of == of && each.begin <= first && last < each.end) return true;
    }
    return false;
  }
};

}  // namespace escrow::inline v0_2
