// SPDX-License-Identifier: Apache-2.0
// Functions that got other parameters in CUDA 13, with those parameters for CUDA 12, too. There
// they are templates beside CUDA's own: a call inside namespace escrow is written as for CUDA 13.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "escrow/version.hpp"

#if CUDART_VERSION < 12080
#error "Escrow needs CUDA 12.8 or newer"
#endif

#if CUDART_VERSION < 13000
namespace escrow::inline v0_2 {

#define ESCROW_AS_IN_CUDA_13(name, its_name)                         \
  template <class... Given>                                          \
  auto name(Given... given) noexcept->decltype(its_name(given...)) { \
    return its_name(given...);                                       \
  }
ESCROW_AS_IN_CUDA_13(cudaGraphAddNode, cudaGraphAddNode_v2)
ESCROW_AS_IN_CUDA_13(cudaGraphAddDependencies, cudaGraphAddDependencies_v2)
ESCROW_AS_IN_CUDA_13(cudaGraphGetEdges, cudaGraphGetEdges_v2)
ESCROW_AS_IN_CUDA_13(cudaGraphNodeGetDependencies, cudaGraphNodeGetDependencies_v2)
ESCROW_AS_IN_CUDA_13(cudaGraphNodeGetDependentNodes, cudaGraphNodeGetDependentNodes_v2)
ESCROW_AS_IN_CUDA_13(cudaStreamGetCaptureInfo, cudaStreamGetCaptureInfo_v3)
ESCROW_AS_IN_CUDA_13(cudaStreamUpdateCaptureDependencies, cudaStreamUpdateCaptureDependencies_v2)
#undef ESCROW_AS_IN_CUDA_13

}  // namespace escrow::inline v0_2
#endif
