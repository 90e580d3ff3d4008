// SPDX-License-Identifier: Apache-2.0
// What every function of the driver does first and last.
#pragma once

#include "call.hpp"

#include <cuda.h>

namespace escrow::sim::model {

// As call(), but for a function of the driver: it answers in every state, makes no context, and
// leaves the runtime's last error alone.
template <class Body>
CUresult driver_call(char const* name, Body body) {
  if (is_forked()) return CUDA_ERROR_NOT_INITIALIZED;
  api_call c(name);
  cudaError_t const admitted = c.admit(outlives_fault | without_context);
  return admitted == cudaSuccess ? body(c) : static_cast<CUresult>(admitted);
}

}  // namespace escrow::sim::model
