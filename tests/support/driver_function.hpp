// SPDX-License-Identifier: Apache-2.0
// Functions of the CUDA driver, as the runtime finds them.
#pragma once

#include <cuda_runtime_api.h>

#include "status.hpp"

namespace escrow::test {

/// The driver's function of that name, with the parameters that it had in that version of CUDA.
template <class Function>
[[nodiscard]] Function driver_function(char const* name, unsigned since) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result{};
  must(cudaGetDriverEntryPointByVersion(name, &function, since, cudaEnableLegacyStream, &result));
  return reinterpret_cast<Function>(function);
}

}  // namespace escrow::test
