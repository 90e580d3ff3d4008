// SPDX-License-Identifier: Apache-2.0
// Addresses that are reserved, and the memory that is mapped there.
#pragma once

#include "state.hpp"

#include <cuda.h>

namespace escrow::sim::model {

// All with the lock held.

// Null if there is no memory left on the device, also after all pools have given theirs back.
physical_memory* make_physical(std::size_t bytes, int device);
// It goes once it is neither held by its maker nor mapped.
void drop_physical(CUmemGenericAllocationHandle handle);
// At reset.
void free_ranges(state& s);

}  // namespace escrow::sim::model

// The driver's functions, under names that begin like those of the runtime: see api_driver.cpp.
extern "C" {
CUresult CUDAAPI cuda_driver_granularity(std::size_t* step, CUmemAllocationProp const* of,
                                         CUmemAllocationGranularity_flags which);
CUresult CUDAAPI cuda_driver_reserve(CUdeviceptr* address, std::size_t bytes, std::size_t alignment,
                                     CUdeviceptr wish, unsigned long long flags);
CUresult CUDAAPI cuda_driver_free_range(CUdeviceptr address, std::size_t bytes);
CUresult CUDAAPI cuda_driver_create(CUmemGenericAllocationHandle* handle, std::size_t bytes,
                                    CUmemAllocationProp const* of, unsigned long long flags);
CUresult CUDAAPI cuda_driver_release_memory(CUmemGenericAllocationHandle handle);
CUresult CUDAAPI cuda_driver_map(CUdeviceptr address, std::size_t bytes, std::size_t offset,
                                 CUmemGenericAllocationHandle handle, unsigned long long flags);
CUresult CUDAAPI cuda_driver_unmap(CUdeviceptr address, std::size_t bytes);
CUresult CUDAAPI cuda_driver_set_access(CUdeviceptr address, std::size_t bytes,
                                        CUmemAccessDesc const* of, std::size_t count);
}
