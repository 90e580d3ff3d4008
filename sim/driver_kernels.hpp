// The driver's functions for kernels and for addresses, under names that begin like those of the
// runtime: see api_driver.cpp.
#pragma once

#include <cuda.h>

#include <cstddef>

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
