// The kernels for the simulated runtime, where a kernel is a host function that does the same. The
// addresses of these functions are what programs launch, as on a GPU.
#include <cmath>
#include <cstddef>
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

namespace {

// The simulator has a pointer to each argument, as cudaLaunchKernel has.
template <class T>
T argument(void** arguments, std::size_t index) {
  return *static_cast<T*>(arguments[index]);
}

bool run_add(void** arguments) {
  add(argument<int*>(arguments, 0), argument<int>(arguments, 1), argument<int>(arguments, 2));
  return true;  // done; false: call again
}

bool run_improve_root(void** arguments) {
  improve_root(argument<double*>(arguments, 0), argument<double const*>(arguments, 1),
               argument<cudaGraphConditionalHandle>(arguments, 2));
  return true;
}

[[maybe_unused]] bool const are_registered = [] {
  using escrow::sim::register_kernel;
  register_kernel(reinterpret_cast<void const*>(&add), &run_add,
                  {sizeof(int*), sizeof(int), sizeof(int)}, "add");
  register_kernel(reinterpret_cast<void const*>(&improve_root), &run_improve_root,
                  {sizeof(double*), sizeof(double*), sizeof(cudaGraphConditionalHandle)},
                  "improve_root");
  return true;
}();

}  // namespace
