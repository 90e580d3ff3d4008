// SPDX-License-Identifier: Apache-2.0
// With CUDA 12's headers the simulator defines these functions with the parameters of CUDA 13, by
// the names that they have there. CUDA 12's own functions of the plain names are not simulated.
#pragma once

#include <cuda_runtime_api.h>

#if CUDART_VERSION < 13000
#undef cudaStreamGetCaptureInfo  // some headers name its second version by a macro
#define cudaGraphAddDependencies cudaGraphAddDependencies_v2
#define cudaGraphAddNode cudaGraphAddNode_v2
#define cudaGraphGetEdges cudaGraphGetEdges_v2
#define cudaGraphNodeGetDependencies cudaGraphNodeGetDependencies_v2
#define cudaGraphNodeGetDependentNodes cudaGraphNodeGetDependentNodes_v2
#define cudaGraphRemoveDependencies cudaGraphRemoveDependencies_v2
#define cudaStreamGetCaptureInfo cudaStreamGetCaptureInfo_v3
#define cudaStreamUpdateCaptureDependencies cudaStreamUpdateCaptureDependencies_v2
#endif
