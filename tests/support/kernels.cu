// SPDX-License-Identifier: Apache-2.0
// The kernels for a GPU.
#include <fstream>

#include "kernels.hpp"

namespace escrow::test {
namespace {

__global__ void add_kernel(int* cell, int value) {
  atomicAdd(cell, value);
}

__global__ void fill_kernel(int* data, std::size_t n, int value) {
  for (std::size_t i = threadIdx.x; i < n; i += blockDim.x) data[i] = value;
}

__global__ void check_kernel(int const* data, std::size_t n, int expected, int* mismatches) {
  int found = 0;
  for (std::size_t i = threadIdx.x; i < n; i += blockDim.x) found += data[i] != expected;
  if (found != 0) atomicAdd(mismatches, found);
}

__global__ void copy_kernel(int* to, int const* from, std::size_t n) {
  for (std::size_t i = threadIdx.x; i < n; i += blockDim.x) to[i] = from[i];
}

__device__ unsigned long long now_ns() {
  unsigned long long result = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(result));
  return result;
}

// Host memory is read over the bus at each turn; the pause keeps the bus free for the host's write.
// It gives up after a time that no test takes: a host call that waits for it fails its test then,
// and hangs no machine.
// What is launched programmatically behind it may begin at once.
__global__ void wait_flag_kernel(int volatile* flag) {
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
  constexpr unsigned long long patience_ns = 20'000'000'000;
  unsigned long long const start = now_ns();
  while (*flag == 0 && now_ns() - start < patience_ns) __nanosleep(200);
}

__global__ void tiny_kernel() {}

__global__ void two_pointers_kernel(int*, int*) {}

__global__ void sleep_kernel(std::uint64_t microseconds) {
  unsigned long long const start = now_ns();
  while (now_ns() - start < microseconds * 1000ULL) __nanosleep(200);
}

__global__ void illegal_address_kernel(int) {
  *reinterpret_cast<int volatile*>(std::uintptr_t{0x10}) = 1;
}

__global__ void set_condition_kernel(cudaGraphConditionalHandle condition, int const* cell) {
  cudaGraphSetConditional(condition, static_cast<unsigned int>(*cell));
}

__global__ void set_condition_below_kernel(cudaGraphConditionalHandle condition, int const* cell,
                                           int limit) {
  cudaGraphSetConditional(condition, *cell < limit ? 1U : 0U);
}

__global__ void cluster_size_kernel(int* cell) {
  unsigned blocks = 1;
#if __CUDA_ARCH__ >= 900
  asm volatile("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(blocks));
#endif
  if (blockIdx.x == 0) *cell = static_cast<int>(blocks);
}

__global__ void struct_kernel(pointer_pair) {}

template <class Kernel>
void* address(Kernel* kernel) {
  return reinterpret_cast<void*>(kernel);
}

// Compiled by the driver when it is loaded, for whatever GPU there is.
constexpr char library_ptx[] = R"(
.version 7.0
.target sm_75
.address_size 64

.visible .entry library_add(.param .u64 cell, .param .u32 value) {
  .reg .b64 %address;
  .reg .b32 %value, %old;
  ld.param.u64 %address, [cell];
  ld.param.u32 %value, [value];
  atom.add.u32 %old, [%address], %value;
  ret;
}

.visible .entry library_tiny() {
  ret;
}
)";

}  // namespace

void const* library_code() {
  return library_ptx;
}

void provide_library_file(char const* path) {
  std::ofstream{path} << library_ptx;
}

bool is_simulated() noexcept {
  return false;
}

void* kernel_address(kernel_id id) {
  static std::array const in_order_of_ids{address(&add_kernel),
                                          address(&fill_kernel),
                                          address(&check_kernel),
                                          address(&copy_kernel),
                                          address(&wait_flag_kernel),
                                          address(&tiny_kernel),
                                          address(&two_pointers_kernel),
                                          address(&sleep_kernel),
                                          address(&illegal_address_kernel),
                                          address(&set_condition_kernel),
                                          address(&set_condition_below_kernel),
                                          address(&cluster_size_kernel),
                                          address(&struct_kernel)};
  return in_order_of_ids.at(static_cast<std::size_t>(id));
}

}  // namespace escrow::test
