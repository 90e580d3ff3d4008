// SPDX-License-Identifier: Apache-2.0
// The driver's contexts, and its functions for kernels and for addresses, under names that begin
// like those of the runtime: see api_driver.cpp.
#pragma once

#include "state.hpp"

#include <cuda.h>

#include <cstddef>

namespace escrow::sim::model {

// A device's only context. Lock held.
inline CUcontext context_of(int device) {
  return reinterpret_cast<CUcontext>(&the().devices[static_cast<std::size_t>(device)]);
}

}  // namespace escrow::sim::model

extern "C" {
CUresult CUDAAPI cuda_driver_kernel_params(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS* params);
CUresult CUDAAPI cuda_driver_kernel_attribute(CUgraphNode node, CUlaunchAttributeID id,
                                              CUlaunchAttributeValue* value);
CUresult CUDAAPI cuda_driver_function_name(char const** name, CUfunction function);
CUresult CUDAAPI cuda_driver_kernel_name(char const** name, CUkernel kernel);
CUresult CUDAAPI cuda_driver_function_parameter(CUfunction function, std::size_t index,
                                                std::size_t* offset, std::size_t* bytes);
CUresult CUDAAPI cuda_driver_kernel_parameter(CUkernel kernel, std::size_t index,
                                              std::size_t* offset, std::size_t* bytes);
CUresult CUDAAPI cuda_driver_pointer_attributes(unsigned count, CUpointer_attribute* which,
                                                void** answers, CUdeviceptr address);
}
