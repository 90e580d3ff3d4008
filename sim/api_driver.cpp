// The driver's version, and those of its functions that the runtime hands out.
#include "api.hpp"
#include "graphs.hpp"

#include <cuda.h>

#include <algorithm>
#include <string_view>

namespace escrow::sim::model {
namespace {

// The driver's functions answer in every state, make no context, and leave the runtime's last error
// alone.

CUresult CUDAAPI primary_context_state(CUdevice device, unsigned* flags, int* active) {
  auto& s = the();
  std::lock_guard const lock(s.mutex);
  if (flags == nullptr || active == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (device < 0 || device >= s.how.devices) return CUDA_ERROR_INVALID_DEVICE;
  *flags = 0;
  *active = s.devices[static_cast<std::size_t>(device)].has_context ? 1 : 0;
  return CUDA_SUCCESS;
}

// 32 bits, where capture ids have 64.
CUresult CUDAAPI graph_id(CUgraph handle, unsigned* id) {
  auto& s = the();
  std::lock_guard const lock(s.mutex);
  auto const graph = find_graph(handle);
  if (graph == nullptr || id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *id = static_cast<unsigned>(graph->id);
  return CUDA_SUCCESS;
}

int driver_version(state const& s) {
  return s.how.driver_version == 0 ? CUDART_VERSION : s.how.driver_version;
}

// Null if a driver of the version that runs, or that was asked for, has no such function.
void* find_function(std::string_view symbol, int version) {
  if (symbol == "cuDevicePrimaryCtxGetState") {
    return version < 7000 ? nullptr : reinterpret_cast<void*>(&primary_context_state);
  }
  if (symbol == "cuGraphGetId") {
    return version < 13010 ? nullptr : reinterpret_cast<void*>(&graph_id);
  }
  return nullptr;
}

}  // namespace
}  // namespace escrow::sim::model

using namespace escrow::sim::model;  // What this file gives C names to.

extern "C" {

cudaError_t CUDARTAPI cudaDriverGetVersion(int* version) {
  return call(__func__, in_callbacks | outlives_fault, [&](api_call& c) {
    if (version == nullptr) return cudaErrorInvalidValue;
    *version = driver_version(c.s);
    return cudaSuccess;
  });
}

cudaError_t CUDARTAPI cudaGetDriverEntryPointByVersion(char const* symbol, void** function,
                                                       unsigned int version,
                                                       unsigned long long flags,
                                                       cudaDriverEntryPointQueryResult* result) {
  return call(__func__, outlives_fault, [&](api_call& c) {
    if (symbol == nullptr || function == nullptr || flags > cudaEnablePerThreadDefaultStream)
      return cudaErrorInvalidValue;
    *function = find_function(symbol, std::min(driver_version(c.s), static_cast<int>(version)));
    bool const is_there = *function != nullptr;
    if (result != nullptr)
      *result = is_there ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return is_there ? cudaSuccess : cudaErrorSymbolNotFound;
  });
}
}
