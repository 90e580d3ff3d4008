// Functions that got other parameters in CUDA 13, with those parameters for CUDA 12, too. There
// they are overloads of CUDA's own: a call inside namespace escrow is written as for CUDA 13.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "escrow/version.hpp"

#if CUDART_VERSION < 12080
#error "Escrow needs CUDA 12.8 or newer"
#endif

#if CUDART_VERSION < 13000
namespace escrow::inline v0_1 {

inline cudaError_t cudaGraphAddNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                    cudaGraphNode_t const* after, cudaGraphEdgeData const* edges,
                                    std::size_t count, cudaGraphNodeParams* params) noexcept {
  return cudaGraphAddNode_v2(node, graph, after, edges, count, params);
}

inline cudaError_t cudaGraphAddDependencies(cudaGraph_t graph, cudaGraphNode_t const* from,
                                            cudaGraphNode_t const* to,
                                            cudaGraphEdgeData const* edges,
                                            std::size_t count) noexcept {
  return cudaGraphAddDependencies_v2(graph, from, to, edges, count);
}

inline cudaError_t cudaGraphGetEdges(cudaGraph_t graph, cudaGraphNode_t* from, cudaGraphNode_t* to,
                                     cudaGraphEdgeData* edges, std::size_t* count) noexcept {
  return cudaGraphGetEdges_v2(graph, from, to, edges, count);
}

inline cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t node, cudaGraphNode_t* after,
                                                cudaGraphEdgeData* edges,
                                                std::size_t* count) noexcept {
  return cudaGraphNodeGetDependencies_v2(node, after, edges, count);
}

inline cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                            unsigned long long* id, cudaGraph_t* graph,
                                            cudaGraphNode_t const** after,
                                            cudaGraphEdgeData const** edges,
                                            std::size_t* count) noexcept {
  return cudaStreamGetCaptureInfo_v3(stream, status, id, graph, after, edges, count);
}

inline cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t stream, cudaGraphNode_t* after,
                                                       cudaGraphEdgeData const* edges,
                                                       std::size_t count, unsigned flags) noexcept {
  return cudaStreamUpdateCaptureDependencies_v2(stream, after, edges, count, flags);
}

}  // namespace escrow::inline v0_1
#endif
