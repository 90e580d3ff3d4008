// The measures of the destructor bench besides the callback itself.
#pragma once

#include "settings.hpp"

namespace escrow::bench {

// Registers reclaim/...: from cudaGraphExecDestroy to the owner's destruction.
void register_reclaim_latency(settings const& how);

// Registers steady/allocations: heap allocations of Escrow in steady state.
void register_steady_allocations(settings const& how);

}  // namespace escrow::bench
