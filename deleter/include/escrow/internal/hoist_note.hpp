// SPDX-License-Identifier: Apache-2.0
// What a graph knows of its `hoisted`.
#pragma once

#include <atomic>
#include <memory>
#include <unordered_set>
#include <vector>

#include "escrow/core/error.hpp"
#include "escrow/version.hpp"

namespace escrow::inline v0_2 {

// What: one hoist() of a graph, for that graph, its child graphs, and their later copies.
// Thread safety: is_released from any thread. Relaxed: CUDA demands that the caller orders the
//   release and what uses the graph.
// Lifetime: of all of them and the `hoisted`.
struct hoist_note {
  explicit hoist_note(source_location where = {}) : made(where) {}

  source_location const made;
  std::unordered_set<void const*> slots = {};  // as held_memory::slots; set before others see it
  std::atomic<bool> is_released{false};        // what was hoisted is others'
};

using hoist_ref = std::shared_ptr<hoist_note>;
using hoist_notes = std::vector<hoist_ref>;

}  // namespace escrow::inline v0_2
