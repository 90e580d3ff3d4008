// SPDX-License-Identifier: Apache-2.0
// What an edge waits for: all of a node, or, behind a kernel, no more than a point in it
// (programmatic dependent launch).
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "objects.hpp"

namespace escrow::sim::model {

inline bool is_full(cudaGraphEdgeData const& edge) {
  return edge.from_port == cudaGraphKernelNodePortDefault;
}

inline bool is_same(cudaGraphEdgeData const& one, cudaGraphEdgeData const& other) {
  return one.from_port == other.from_port && one.type == other.type;
}

// A full edge if the caller named no data.
inline cudaGraphEdgeData edge_at(cudaGraphEdgeData const* edges, std::size_t index) {
  return edges == nullptr ? cudaGraphEdgeData{} : edges[index];
}

// Whether there are such edges behind `from`.
inline bool can_begin_at(CUgraphNode_st const& from, cudaGraphEdgeData const& edge) {
  bool const is_programmatic = edge.type == cudaGraphDependencyTypeProgrammatic;
  if (edge.to_port != 0 || (edge.type != cudaGraphDependencyTypeDefault && !is_programmatic))
    return false;
  if (is_full(edge)) return !is_programmatic;
  if (from.type != cudaGraphNodeTypeKernel) return false;
  return edge.from_port == cudaGraphKernelNodePortLaunchCompletion ||
         (edge.from_port == cudaGraphKernelNodePortProgrammatic && is_programmatic);
}

// Whether `node` does not end before what is in front of it on an edge that is not full
// (measured).
inline bool is_programmatic_launch(CUgraphNode_st const& node, cudaGraphEdgeData const& edge) {
  return node.type == cudaGraphNodeTypeKernel && edge.type == cudaGraphDependencyTypeProgrammatic;
}

// Whether such edges can be added that lead to nodes of a kind. Captures make others, too.
inline bool can_lead_to(cudaGraphNodeType kind, cudaGraphEdgeData const& edge) {
  return edge.type == cudaGraphDependencyTypeDefault || kind == cudaGraphNodeTypeKernel;
}

}  // namespace escrow::sim::model
