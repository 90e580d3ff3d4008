// SPDX-License-Identifier: Apache-2.0
// Tests are written for the parameters of CUDA 13: with CUDA 12 these are overloads of its own
// functions. Every test reads this first.
#pragma once

#include "escrow/detail/cuda12.hpp"

#if CUDART_VERSION < 13000
using escrow::cudaGraphAddDependencies;
using escrow::cudaGraphAddNode;
using escrow::cudaGraphGetEdges;
using escrow::cudaGraphNodeGetDependencies;
using escrow::cudaStreamGetCaptureInfo;
using escrow::cudaStreamUpdateCaptureDependencies;

inline cudaError_t cudaGraphNodeGetDependentNodes(cudaGraphNode_t node, cudaGraphNode_t* after,
                                                  cudaGraphEdgeData* edges, std::size_t* count) {
  return cudaGraphNodeGetDependentNodes_v2(node, after, edges, count);
}

inline cudaError_t cudaGraphRemoveDependencies(cudaGraph_t graph, cudaGraphNode_t const* from,
                                               cudaGraphNode_t const* to,
                                               cudaGraphEdgeData const* edges, std::size_t count) {
  return cudaGraphRemoveDependencies_v2(graph, from, to, edges, count);
}
#endif
