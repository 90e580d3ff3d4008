// What a graph consists of, to see whether two graphs are alike.
#pragma once

#include <cuda_runtime_api.h>

#include <map>
#include <string>

namespace escrow::bench {

// Nodes by type and edges, by the names that they have as counters: "nodes_kernel", "edges".
using graph_facts = std::map<std::string, int>;

// Looks at the graph itself, not at its child graphs.
[[nodiscard]] graph_facts facts_of(cudaGraph_t graph);

}  // namespace escrow::bench
