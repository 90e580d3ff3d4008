// SPDX-License-Identifier: Apache-2.0
// CUDA 13.3's recapture, also for a program that is compiled with older headers.
#pragma once

#include <cuda_runtime_api.h>

#if CUDART_VERSION < 13030
enum cudaGraphRecaptureStatus {
  cudaGraphRecaptureEligibleForUpdate = 0,
  cudaGraphRecaptureIneligibleForUpdate = 1,
  cudaGraphRecaptureError = 2
};
using cudaGraphRecaptureCallback_t = cudaError_t(CUDART_CB*)(void* data, cudaGraphNode_t node,
                                                             cudaGraphNodeParams const* original,
                                                             cudaGraphNodeParams const* recaptured,
                                                             cudaGraphRecaptureStatus status);
struct cudaGraphRecaptureCallbackData {
  cudaGraphRecaptureCallback_t callbackFunc;
  void* userData;
};
inline constexpr auto cudaErrorGraphRecaptureFailure = static_cast<cudaError_t>(918);

extern "C" cudaError_t CUDARTAPI
cudaStreamBeginRecaptureToGraph(cudaStream_t stream, cudaStreamCaptureMode mode, cudaGraph_t graph,
                                cudaGraphRecaptureCallbackData* callback);
#endif

namespace escrow::sim {

// CUDA's manual does not say whether a graph keeps its id in a recapture, by which Escrow knows it.
// False, as after reset(): it does, as in cudaStreamBeginCaptureToGraph. Any thread.
void set_recapture_gives_new_id(bool is_new);

}  // namespace escrow::sim
