// The measures of the capture bench.
#pragma once

#include <chrono>

#include "settings.hpp"

namespace escrow::bench {

// Registers capture/claim/...: claims and releases in a capture, with a kernel each.
void register_claims(settings const& how);
// Registers capture/retire/... and capture/instantiate/...: many owners in one graph.
void register_owners(settings const& how);
// Registers capture/whole/...: capture, instantiate, launch and destroy.
void register_whole(settings const& how);
// Registers capture/identity/...: instantiating large graphs.
void register_identity(settings const& how);
// Registers capture/eager/...: eager claims with many free slots, and over many streams.
void register_eager(settings const& how);

// How often each benchmark of the program is repeated.
[[nodiscard]] inline int repetitions(settings const& how) {
  return how.choose(7, 3, 1);
}

// How long everything may take to come back between two measurements.
inline constexpr std::chrono::seconds settle_max{10};

}  // namespace escrow::bench
