// What a pool has, and what it had to do.
#pragma once

#include <cstddef>
#include <cstdint>

namespace escrow {

// What: counts, read one by one while others go on. The claims that find their stream's own slot,
//   the common ones, are not counted, because counting would cost more than it tells.
// Thread safety: a value.
// Memory ordering: none; the counts are relaxed.
// Lifetime: a value.
// Capture: none.
// Errors: none.
struct pool_stats {
  std::size_t slots = 0;           // resources that exist
  std::size_t in_graphs = 0;       // of them, held by graphs
  std::size_t quarantined = 0;     // of them, never to be handed out again
  std::uint64_t grown = 0;         // resources made so far
  std::uint64_t stream_waits = 0;  // claims that made their stream wait for another
  std::uint64_t host_waits = 0;    // claims that blocked the host
  std::uint64_t edges_added = 0;   // claims in a capture that ordered one branch after another
};

}  // namespace escrow
