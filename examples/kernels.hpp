// SPDX-License-Identifier: Apache-2.0
// The kernels of the examples: kernels.cu has them for a GPU, kernels_sim.cpp for the simulator.
#pragma once

#include <cuda_runtime_api.h>

// Adds `value` to each of `count` integers.
__global__ void add(int* to, int value, int count);

// Improves a guess of the square root of `*square`, and makes `unfinished` 0 once it is good.
__global__ void improve_root(double* guess, double const* square,
                             cudaGraphConditionalHandle unfinished);
