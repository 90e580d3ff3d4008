// What kernel calls have in common on both runtimes: argument storage, launch, node parameters.
#include "kernels.hpp"

namespace escrow::test {
namespace {

// Kernels that walk over an array share the work among threads; the others must run once.
dim3 block_of(kernel_id id) {
  bool const walks = id == kernel_id::fill || id == kernel_id::check || id == kernel_id::copy;
  return dim3{walks ? 256U : 1U, 1, 1};
}

}  // namespace

void** kernel_call::pointers() {
  for (std::size_t i = 0; i < count_; ++i) {
    pointers_[i] = &values_[i];
  }
  return pointers_.data();
}

cudaKernelNodeParams kernel_call::params() {
  cudaKernelNodeParams result{};
  result.func = kernel_address(id_);
  result.gridDim = dim3{1, 1, 1};
  result.blockDim = block_of(id_);
  result.kernelParams = pointers();
  return result;
}

cudaError_t kernel_call::launch(cudaStream_t stream) {
  return cudaLaunchKernel(kernel_address(id_), dim3{1, 1, 1}, block_of(id_), pointers(), 0, stream);
}

kernel_call add_call(int* cell, int value) {
  return kernel_call{kernel_id::add, cell, value};
}

kernel_call fill_call(int* data, std::size_t n, int value) {
  return kernel_call{kernel_id::fill, data, n, value};
}

kernel_call check_call(int const* data, std::size_t n, int expected, int* mismatches) {
  return kernel_call{kernel_id::check, data, n, expected, mismatches};
}

kernel_call copy_call(int* to, int const* from, std::size_t n) {
  return kernel_call{kernel_id::copy, to, from, n};
}

kernel_call wait_flag_call(int volatile* flag) {
  return kernel_call{kernel_id::wait_flag, flag};
}

kernel_call tiny_call() {
  return kernel_call{kernel_id::tiny};
}

kernel_call sleep_call(std::uint64_t microseconds) {
  return kernel_call{kernel_id::sleep, microseconds};
}

kernel_call illegal_address_call() {
  // The simulated runtime must be told which device the write breaks; a GPU knows.
  int device = 0;
  static_cast<void>(cudaGetDevice(&device));
  return kernel_call{kernel_id::illegal_address, device};
}

kernel_call set_condition_call(cudaGraphConditionalHandle condition, int const* cell) {
  return kernel_call{kernel_id::set_condition, condition, cell};
}

kernel_call set_condition_below_call(cudaGraphConditionalHandle condition, int const* cell,
                                     int limit) {
  return kernel_call{kernel_id::set_condition_below, condition, cell, limit};
}

cudaError_t launch_add(cudaStream_t stream, int* cell, int value) {
  return add_call(cell, value).launch(stream);
}

cudaError_t launch_fill(cudaStream_t stream, int* data, std::size_t n, int value) {
  return fill_call(data, n, value).launch(stream);
}

cudaError_t launch_check(cudaStream_t stream, int const* data, std::size_t n, int expected,
                         int* mismatches) {
  return check_call(data, n, expected, mismatches).launch(stream);
}

cudaError_t launch_copy(cudaStream_t stream, int* to, int const* from, std::size_t n) {
  return copy_call(to, from, n).launch(stream);
}

cudaError_t launch_wait_flag(cudaStream_t stream, int volatile* flag) {
  return wait_flag_call(flag).launch(stream);
}

cudaError_t launch_tiny(cudaStream_t stream) {
  return tiny_call().launch(stream);
}

cudaError_t launch_sleep(cudaStream_t stream, std::uint64_t microseconds) {
  return sleep_call(microseconds).launch(stream);
}

cudaError_t launch_illegal_address(cudaStream_t stream) {
  return illegal_address_call().launch(stream);
}

}  // namespace escrow::test
