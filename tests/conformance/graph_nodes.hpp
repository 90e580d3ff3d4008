// Parameters of graph nodes in tests, and launching what has been built.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "handles.hpp"
#include "status.hpp"

namespace escrow::test {

[[nodiscard]] inline cudaMemsetParams fill_params(void* to, unsigned value, unsigned element_size,
                                                  std::size_t width, std::size_t height = 1,
                                                  std::size_t pitch = 0) {
  cudaMemsetParams result{};
  result.dst = to;
  result.value = value;
  result.elementSize = element_size;
  result.width = width;
  result.height = height;
  result.pitch = pitch;
  return result;
}

/// A copy of `height` rows of `width` bytes.
[[nodiscard]] inline cudaMemcpy3DParms copy_params(void* to, std::size_t to_pitch, void* from,
                                                   std::size_t from_pitch, std::size_t width,
                                                   std::size_t height) {
  cudaMemcpy3DParms result{};
  result.dstPtr = {to, to_pitch, to_pitch, height};
  result.srcPtr = {from, from_pitch, from_pitch, height};
  result.extent = {width, height, 1};
  result.kind = cudaMemcpyDefault;
  return result;
}

[[nodiscard]] inline cudaMemAllocNodeParams alloc_params(std::size_t bytes) {
  cudaMemAllocNodeParams result{};
  result.poolProps.allocType = cudaMemAllocationTypePinned;
  result.poolProps.location.type = cudaMemLocationTypeDevice;
  result.bytesize = bytes;
  return result;
}

inline cudaGraphNode_t add_fill(cudaGraph_t graph, cudaMemsetParams const& params,
                                cudaGraphNode_t behind = nullptr) {
  cudaGraphNode_t node = nullptr;
  must(cudaGraphAddMemsetNode(&node, graph, behind == nullptr ? nullptr : &behind,
                              behind == nullptr ? 0 : 1, &params));
  return node;
}

inline cudaGraphNode_t add_copy(cudaGraph_t graph, void* to, void const* from, std::size_t bytes,
                                cudaGraphNode_t behind = nullptr) {
  cudaGraphNode_t node = nullptr;
  must(cudaGraphAddMemcpyNode1D(&node, graph, behind == nullptr ? nullptr : &behind,
                                behind == nullptr ? 0 : 1, to, from, bytes, cudaMemcpyDefault));
  return node;
}

/// Adds a node by the call that takes all kinds.
inline cudaGraphNode_t add_any(cudaGraph_t graph, cudaGraphNodeParams params,
                               cudaGraphNode_t behind = nullptr) {
  cudaGraphNode_t node = nullptr;
  must(cudaGraphAddNode(&node, graph, behind == nullptr ? nullptr : &behind, nullptr,
                        behind == nullptr ? 0 : 1, &params));
  return node;
}

[[nodiscard]] inline cudaGraphNodeParams params_of(cudaGraphNodeType type) {
  cudaGraphNodeParams result{};
  result.type = type;
  return result;
}

/// Launches once and waits.
inline void run(cudaGraphExec_t exec, cudaStream_t stream) {
  must(cudaGraphLaunch(exec, stream));
  must(cudaStreamSynchronize(stream));
}

inline void run(cudaGraph_t graph, cudaStream_t stream) {
  owned_exec const exec = instantiate(graph);
  run(exec, stream);
}

/// The status of a call that may fail, with the thread's last error cleared.
[[nodiscard]] inline cudaError_t tried(cudaError_t status) {
  static_cast<void>(cudaGetLastError());
  return status;
}

}  // namespace escrow::test
