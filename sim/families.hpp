// SPDX-License-Identifier: Apache-2.0
// Families of graphs, whose links CUDA guards by nothing: two threads that make or end members at
// the same time corrupt the heap there, and end the process here.
#pragma once

#include "call.hpp"

namespace escrow::sim::model {

// The state's mutex is held. Until the call returns, nobody else may enter the same.

// The call makes `made`, a clone, a copy in a child node or the inside of an exec: enters what it
// is linked to.
void enter_links(api_call& c, graph_state const& made);
// The call makes something of the graph, or changes it with links of others to it.
void enter_own(api_call& c, graph_state const& original);
// The call ends the graph, or an exec's inside: enters both.
void enter_families(api_call& c, graph_state const& ended);

}  // namespace escrow::sim::model
