// What the simulator knows of edges: that one node comes after another, and no more.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>

namespace escrow::sim::model {

/// True if all edges wait for the whole of a node; others (programmatic launches) are not
/// simulated.
inline bool are_plain(cudaGraphEdgeData const* edges, std::size_t count) {
  if (edges == nullptr) return true;
  return std::all_of(edges, edges + count, [](cudaGraphEdgeData const& edge) {
    return edge.from_port == 0 && edge.to_port == 0 && edge.type == 0;
  });
}

}  // namespace escrow::sim::model
