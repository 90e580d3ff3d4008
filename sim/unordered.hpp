// SPDX-License-Identifier: Apache-2.0
// Nodes of a graph that use the same memory, where no edge says which of them comes first.
#pragma once

#include "objects.hpp"

namespace escrow::sim::model {

// Ends the process if a fill or a copy of the graph writes what another node uses, and the two may
// run at the same time; with ESCROW_AUDIT=1 also for two kernels that get the same pointer, if by
// their types one of them writes there. The graph is sorted. A graph with nodes for events, which
// may order others, is not looked at, nor is one of more than 4,096 nodes. Lock held.
void refuse_unordered(char const* call, graph_state const& graph);

}  // namespace escrow::sim::model
