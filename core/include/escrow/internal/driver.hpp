// Functions of the CUDA driver, which the runtime finds by name.
#pragma once

#include <cuda_runtime_api.h>

#include "escrow/core/error.hpp"

namespace escrow::inline v0_1 {

// The function of that name, with the parameters that it had in that CUDA version. Throws
// cuda_error.
template <class Function>
[[nodiscard]] Function find_in_driver(char const* name, unsigned since) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  check(cudaGetDriverEntryPointByVersion(name, &found, since, cudaEnableDefault, &result),
        "cudaGetDriverEntryPointByVersion");
  return reinterpret_cast<Function>(found);
}

// Throws cuda_error unless `result`, a CUresult, is CUDA_SUCCESS. The numbers are those of
// cudaError_t. The runtime's last error is not touched.
inline void check_driver(int result, char const* call) {
  if (result != cudaSuccess) throw cuda_error(static_cast<cudaError_t>(result), call);
}

}  // namespace escrow::inline v0_1
