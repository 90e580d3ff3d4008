// SPDX-License-Identifier: Apache-2.0
// What the driver tells of kernels' nodes, of kernels, and of addresses.
#include "api.hpp"
#include "driver_call.hpp"
#include "driver_kernels.hpp"
#include "graph_memory.hpp"
#include "memory.hpp"
#include "nodes.hpp"

#include <cstring>
#include <string>
#include <utility>

namespace escrow::sim::model {
namespace {

// Handles of kernels are the addresses of their code: see cuda_driver_kernel_params().
kernel_code const* code_of(void const* handle) {
  return static_cast<kernel_code const*>(handle);
}

CUresult name_of(char const* call, char const** name, void const* handle) {
  return driver_call(call, [&](api_call&) {
    if (name == nullptr || handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *name = code_of(handle)->name.c_str();
    return CUDA_SUCCESS;
  });
}

// Parameters lie at their own alignment, which is at most 8 here.
CUresult parameter_of(char const* call, void const* handle, std::size_t index, std::size_t* offset,
                      std::size_t* bytes) {
  return driver_call(call, [&](api_call&) {
    if (offset == nullptr || handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
    auto const& sizes = code_of(handle)->arg_sizes;
    if (index >= sizes.size()) return CUDA_ERROR_INVALID_VALUE;
    std::size_t at = 0;
    for (std::size_t i = 0;; ++i) {
      std::size_t const alignment = sizes[i] % 8 == 0 ? 8 : sizes[i] % 4 == 0 ? 4 : 1;
      at = (at + alignment - 1) / alignment * alignment;
      if (i == index) break;
      at += sizes[i];
    }
    *offset = at;
    if (bytes != nullptr) *bytes = sizes[index];
    return CUDA_SUCCESS;
  });
}

CUmemoryPool pool_of(void const* address) {
  auto& s = the();
  auto const after = s.allocations.upper_bound(address);
  return after == s.allocations.begin() ? nullptr : std::prev(after)->second.pool;
}

}  // namespace

// Exported, under names that begin like those of the runtime: see escrow_sim's CMakeLists.txt.
extern "C" {
CUresult CUDAAPI cuda_driver_kernel_params(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS* params) {
  return driver_call("cuGraphKernelNodeGetParams", [&](api_call&) {
    auto* const kernel = node == nullptr ? nullptr : std::get_if<kernel_work>(&node->what);
    if (kernel == nullptr || params == nullptr) return CUDA_ERROR_INVALID_VALUE;
    auto const& [grid, block] = std::pair(kernel->shape.gridDim, kernel->shape.blockDim);
    *params = {};
    auto* const code = const_cast<kernel_code*>(kernel->code);
    if (code->of_library) {
      params->kern = reinterpret_cast<CUkernel>(code);
    } else {
      params->func = reinterpret_cast<CUfunction>(code);
    }
    kernel->pointers = kernel->args.pointers();
    params->kernelParams = kernel->pointers.data();
    params->gridDimX = grid.x, params->gridDimY = grid.y, params->gridDimZ = grid.z;
    params->blockDimX = block.x, params->blockDimY = block.y, params->blockDimZ = block.z;
    params->sharedMemBytes = kernel->shape.sharedMemBytes;
    params->ctx = context_of(kernel->device);
    return CUDA_SUCCESS;
  });
}
CUresult CUDAAPI cuda_driver_kernel_attribute(CUgraphNode node, CUlaunchAttributeID id,
                                              CUlaunchAttributeValue* value) {
  return driver_call("cuGraphKernelNodeGetAttribute", [&](api_call&) {
    auto const* const kernel = node == nullptr ? nullptr : std::get_if<kernel_work>(&node->what);
    cudaLaunchAttributeValue read{};
    if (kernel == nullptr || value == nullptr || !read_attribute(*kernel, id, read))
      return CUDA_ERROR_INVALID_VALUE;
    std::memcpy(value, &read, sizeof(read));
    return CUDA_SUCCESS;
  });
}
CUresult CUDAAPI cuda_driver_function_name(char const** name, CUfunction function) {
  return name_of("cuFuncGetName", name, function);
}
CUresult CUDAAPI cuda_driver_kernel_name(char const** name, CUkernel kernel) {
  return name_of("cuKernelGetName", name, kernel);
}
CUresult CUDAAPI cuda_driver_function_parameter(CUfunction function, std::size_t index,
                                                std::size_t* offset, std::size_t* bytes) {
  return parameter_of("cuFuncGetParamInfo", function, index, offset, bytes);
}
CUresult CUDAAPI cuda_driver_kernel_parameter(CUkernel kernel, std::size_t index,
                                              std::size_t* offset, std::size_t* bytes) {
  return parameter_of("cuKernelGetParamInfo", kernel, index, offset, bytes);
}
// Of an address that is in no memory all are zero, without an error.
CUresult CUDAAPI cuda_driver_pointer_attributes(unsigned count, CUpointer_attribute* which,
                                                void** answers, CUdeviceptr address) {
  return driver_call("cuPointerGetAttributes", [&](api_call&) {
    if (count == 0 || which == nullptr || answers == nullptr) return CUDA_ERROR_INVALID_VALUE;
    auto const* const asked = reinterpret_cast<void const*>(address);
    bool const is_of_graph = find_block_around(asked) != nullptr;  // CUDA does not know these
    auto const place = is_of_graph ? memory_place{} : place_of(asked);
    bool const is_known = place.type != cudaMemoryTypeUnregistered;
    for (unsigned i = 0; i < count; ++i) {
      if (which[i] == CU_POINTER_ATTRIBUTE_MEMORY_TYPE) {
        *static_cast<unsigned*>(answers[i]) = static_cast<unsigned>(place.type);
      } else if (which[i] == CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE) {
        *static_cast<CUmemoryPool*>(answers[i]) = is_known ? pool_of(asked) : nullptr;
      } else {
        return CUDA_ERROR_INVALID_VALUE;
      }
    }
    return CUDA_SUCCESS;
  });
}
}

}  // namespace escrow::sim::model
