// Who holds slots of a pool that is being closed.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "escrow/core/error.hpp"

namespace escrow {

// What: one holder of slots: a graph, with all that was made from it, or the leases that are out.
// Thread safety: a value.
// Memory ordering: none.
// Lifetime: a value.
// Capture: none.
// Errors: none.
struct holder {
  // The id under which the graph was captured; 0: leases, or a node of a graph built by hand.
  std::uint64_t capture_id = 0;
  std::string label;                              // the pool's label
  std::size_t slots = 0;                          // how many it holds
  std::chrono::steady_clock::time_point since{};  // of its first claim or share; zero for leases
  // The line of its first claim, in a capture; empty for leases and nodes.
  source_location where = {};
};

}  // namespace escrow
