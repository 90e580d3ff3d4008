// How a graph is instantiated.
#pragma once

#include <cuda_runtime_api.h>

#include <vector>

namespace escrow {

// What: choices for graph_exec.
// Thread safety: a value.
// Memory ordering: none.
// Lifetime: read by the constructor only.
// Capture: none.
// Errors: none.
struct instantiate_options {
  // cudaGraphInstantiateFlags, or'ed.
  unsigned long long flags = 0;
  // All body graphs of the graph's conditional nodes, nested ones too, as the nodes' creation gave
  // them (phGraph_out): CUDA does not tell them afterwards. Those that a `graph` has created need
  // not be named. Without them the exec is correct, too, but not bare if a body holds something.
  std::vector<cudaGraph_t> bodies = {};
};

}  // namespace escrow
