// SPDX-License-Identifier: Apache-2.0
// What graphs hold of the slots of one size.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <unordered_set>
#include <vector>

#include "escrow/core/error.hpp"
#include "slot.hpp"

namespace escrow::inline v0_2 {

// Of the graph of one capture. Guarded by capture_reuse.
struct captured_slots {
  std::size_t holds = 0;
  std::chrono::steady_clock::time_point since;
  source_location where;
  std::vector<slot*> reusable;  // in the order of their releases
  std::uint64_t offers = 0;     // releases that made a slot reusable so far
  // No reusable slot is before these nodes. Cleared by the next release.
  std::unordered_set<cudaGraphNode_t> barren;
};

// Of all graphs. Guarded by capture_reuse.
struct slots_in_graphs {
  std::map<std::uint64_t, captured_slots> entries;  // by the capture's id
  std::size_t slots_held = 0;   // by any number of graphs; without those of arenas
  std::size_t places_held = 0;  // the same of arenas
  slot_list shared;
};

}  // namespace escrow::inline v0_2
