// SPDX-License-Identifier: Apache-2.0
// Edges of graphs.
#include "api.hpp"
#include "edges.hpp"
#include "graph_memory.hpp"
#include "graphs.hpp"

using namespace escrow::sim::model;  // What this file gives C names to.

extern "C" {

cudaError_t CUDARTAPI cudaGraphAddDependencies(cudaGraph_t handle, cudaGraphNode_t const* from,
                                               cudaGraphNode_t const* to,
                                               cudaGraphEdgeData const* edges, std::size_t count) {
  return call("cudaGraphAddDependencies", outlives_fault, [&](api_call&) {
    auto const graph = find_graph(handle);
    if (graph == nullptr || (count != 0 && (from == nullptr || to == nullptr)))
      return cudaErrorInvalidValue;
    for (std::size_t i = 0; i < count; ++i) {
      if (from[i]->graph != graph.get() || to[i]->graph != graph.get())
        return cudaErrorInvalidValue;
      if (from[i] == to[i] || depends_on(*to[i], *from[i])) return cudaErrorInvalidValue;
      cudaGraphEdgeData const edge = edge_at(edges, i);
      if (!can_begin_at(*from[i], edge) || !can_lead_to(to[i]->type, edge))
        return cudaErrorInvalidValue;
    }
    for (std::size_t i = 0; i < count; ++i) add_edge(*from[i], *to[i], edge_at(edges, i));
    return cudaSuccess;
  });
}

cudaError_t CUDARTAPI cudaGraphRemoveDependencies(cudaGraph_t handle, cudaGraphNode_t const* from,
                                                  cudaGraphNode_t const* to,
                                                  cudaGraphEdgeData const* edges,
                                                  std::size_t count) {
  return call("cudaGraphRemoveDependencies", outlives_fault, [&](api_call&) {
    auto const graph = find_graph(handle);
    if (graph == nullptr || (count != 0 && (from == nullptr || to == nullptr)))
      return cudaErrorInvalidValue;
    if (count != 0 && has_memory_nodes(*graph)) return cudaErrorNotSupported;
    for (std::size_t i = 0; i < count; ++i) {
      if (to[i]->graph != graph.get() || !depends_on(*to[i], *from[i]))
        return cudaErrorInvalidValue;
      if (edges != nullptr && !is_same(edges[i], edge_from(*from[i], *to[i])))
        return cudaErrorInvalidValue;
    }
    for (std::size_t i = 0; i < count; ++i) remove_edge(*from[i], *to[i]);
    return cudaSuccess;
  });
}
}
