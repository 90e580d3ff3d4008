// SPDX-License-Identifier: Apache-2.0
// What all api_*.cpp files share. These files define CUDA's own functions, so that a program linked
// with them needs no CUDA runtime: each checks its arguments, applies CUDA's prohibitions, and
// calls the model.
#pragma once

#include "call.hpp"
#include "cuda12_names.hpp"

#include <cuda_runtime_api.h>

// The per-thread default stream renames functions at compile time; the simulator defines the plain
// names only.
#ifdef __CUDART_API_PER_THREAD_DEFAULT_STREAM
#error "escrow::sim has no per-thread default stream macro: name cudaStreamPerThread instead"
#endif
