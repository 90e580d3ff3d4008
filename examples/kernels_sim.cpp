// SPDX-License-Identifier: Apache-2.0
// The kernels for the simulated runtime, where a kernel is a host function that does the same. The
// addresses of these functions are what programs launch, as on a GPU.
#include <cmath>
#include <escrow/sim.hpp>

#include "kernels.hpp"

__global__ void add(int* to, int value, int count) {
  for (int i = 0; i < count; ++i) to[i] += value;
}

__global__ void improve_root(double* guess, double const* square,
                             cudaGraphConditionalHandle unfinished) {
  double const better = (*guess + *square / *guess) / 2;
  bool const is_good = std::abs(better - *guess) <= 1e-12 * better;
  *guess = better;
  escrow::sim::set_conditional(unfinished, is_good ? 0 : 1);
}

[[maybe_unused]] auto* const add_kernel = escrow::sim::register_kernel<&add>("add");
[[maybe_unused]] auto* const improve_root_kernel =
    escrow::sim::register_kernel<&improve_root>("improve_root");
