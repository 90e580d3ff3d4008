// Families of graphs, whose links CUDA guards by nothing: two threads that make or end members at
// the same time corrupt the heap there, and end the process here.
#pragma once

#include "call.hpp"

namespace escrow::sim::model {

/// The call makes or ends the graph, which may be the inside of an exec: nobody else may make or
/// end anything of the same families until it returns. The state's mutex is held.
void enter_families(api_call& c, CUgraph_st const& member);
/// The same for a call that ends a node of the graph.
void enter_own_family(api_call& c, CUgraph_st const& original);

}  // namespace escrow::sim::model
