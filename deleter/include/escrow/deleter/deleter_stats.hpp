// What a deleter has done and still owes.
#pragma once

#include <cstdint>

namespace escrow {

// What: counts, read one by one while others go on, so they may not add up to the last unit.
// Thread safety: a value.
// Memory ordering: none; the counts are relaxed.
// Lifetime: a value.
// Capture: none.
// Errors: none.
struct deleter_stats {
  // What the worker is done with so far: owners destroyed, slots recycled or destroyed, bundles and
  // holds of graphs let go, and what it found has to be kept for ever (also in `held`).
  std::uint64_t reclaimed = 0;
  std::uint64_t pending = 0;    // known to the worker, waiting for the ready event
  std::uint64_t in_graphs = 0;  // slots and owners that graphs and execs hold
  std::uint64_t held = 0;       // kept for ever: nothing tells when the GPU is done with them
  std::uint64_t errors = 0;     // reported to on_error
};

}  // namespace escrow
