// The measures of the build bench besides building.
#pragma once

#include "settings.hpp"

namespace escrow::bench {

// The nodes of a chain.
inline constexpr int chain_nodes = 10'000;

// Registers memory/...: bytes of the host's heap that Escrow takes for each owner.
void register_owner_bytes(settings const& how);
// Registers retained/...: launches of a graph that was built by hand.
void register_retained_launches(settings const& how);

}  // namespace escrow::bench
