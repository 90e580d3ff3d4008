// SPDX-License-Identifier: Apache-2.0
// The kernels that tests and benches launch: one set of names for the simulated runtime and for a
// GPU.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace escrow::test {

/// True when the program is linked with the simulated runtime.
[[nodiscard]] bool is_simulated() noexcept;

/// The kernels there are. Each has an address that cudaLaunchKernel and kernel nodes accept.
enum class kernel_id {
  add,
  fill,
  check,
  copy,
  wait_flag,
  tiny,
  two_pointers,
  sleep,
  illegal_address,
  set_condition,
  set_condition_below,
  cluster_size,
  struct_of_pointers
};

/// What the kernel struct_of_pointers takes, which does nothing.
struct pointer_pair {
  int* first;
  long long count;  // no padding, whose bytes may look like an address
  int* second;
};

/// The address of a kernel. On the simulated runtime the first call registers all of them.
[[nodiscard]] void* kernel_address(kernel_id id);

/// The same as a function whose parameters are known.
template <class... Parameters>
[[nodiscard]] auto function_of(kernel_id id) {
  return reinterpret_cast<void (*)(Parameters...)>(kernel_address(id));
}

/// One kernel with its arguments by value: launches itself, or describes itself for a graph built
/// by hand.
class kernel_call {
 public:
  template <class... Arguments>
  explicit kernel_call(kernel_id id, Arguments... arguments) : id_{id} {
    static_assert(sizeof...(Arguments) <= arguments_max);
    (store(arguments), ...);
  }

  /// What cudaGraphAddKernelNode takes. Points into this object: use it before the object moves or
  /// ends.
  [[nodiscard]] cudaKernelNodeParams params() {
    cudaKernelNodeParams result{};
    result.func = kernel_address(id_);
    result.gridDim = dim3{1, 1, 1};
    result.blockDim = block();
    result.kernelParams = pointers();
    return result;
  }

  /// Several blocks, with launch attributes.
  [[nodiscard]] cudaError_t launch(cudaStream_t stream, unsigned blocks,
                                   std::vector<cudaLaunchAttribute> attributes) {
    cudaLaunchConfig_t config{};
    config.gridDim = dim3{blocks, 1, 1};
    config.blockDim = block();
    config.stream = stream;
    config.attrs = attributes.data();
    config.numAttrs = static_cast<unsigned>(attributes.size());
    return cudaLaunchKernelExC(&config, kernel_address(id_), pointers());
  }

  /// One block on `stream`.
  [[nodiscard]] cudaError_t launch(cudaStream_t stream) {
    return cudaLaunchKernel(kernel_address(id_), dim3{1, 1, 1}, block(), pointers(), 0, stream);
  }

 private:
  static constexpr std::size_t arguments_max = 4;

  template <class Argument>
  void store(Argument const& argument) {
    static_assert(sizeof(Argument) <= sizeof(std::uint64_t));
    std::memcpy(&values_[count_++], &argument, sizeof(Argument));
  }
  void** pointers() {
    for (std::size_t i = 0; i < count_; ++i) pointers_[i] = &values_[i];
    return pointers_.data();
  }
  /// Kernels that walk over an array share the work among threads; the others must run once.
  [[nodiscard]] dim3 block() const {
    bool const walks = id_ == kernel_id::fill || id_ == kernel_id::check || id_ == kernel_id::copy;
    return {walks ? 256U : 1U, 1, 1};
  }

  kernel_id id_;
  std::size_t count_ = 0;
  std::array<std::uint64_t, arguments_max> values_{};
  std::array<void*, arguments_max> pointers_{};
};

/// Adds `value` to `*cell`, atomically and with relaxed order.
[[nodiscard]] inline kernel_call add_call(int* cell, int value) {
  return kernel_call{kernel_id::add, cell, value};
}
/// Sets `n` elements to `value`.
[[nodiscard]] inline kernel_call fill_call(int* data, std::size_t n, int value) {
  return kernel_call{kernel_id::fill, data, n, value};
}
/// Adds to `*mismatches` how many of `n` elements differ from `expected`.
[[nodiscard]] inline kernel_call check_call(int const* data, std::size_t n, int expected,
                                            int* mismatches) {
  return kernel_call{kernel_id::check, data, n, expected, mismatches};
}
/// Copies `n` elements.
[[nodiscard]] inline kernel_call copy_call(int* to, int const* from, std::size_t n) {
  return kernel_call{kernel_id::copy, to, from, n};
}
/// Runs until `*flag`, in pinned host memory, is not zero; on a GPU for 20 s at most.
[[nodiscard]] inline kernel_call wait_flag_call(int volatile* flag) {
  return kernel_call{kernel_id::wait_flag, flag};
}
/// Does nothing. So does the kernel two_pointers, which takes two of int*.
[[nodiscard]] inline kernel_call tiny_call() {
  return kernel_call{kernel_id::tiny};
}
/// Runs for about `microseconds`.
[[nodiscard]] inline kernel_call sleep_call(std::uint64_t microseconds) {
  return kernel_call{kernel_id::sleep, microseconds};
}
/// Writes to an illegal address of the device that is current now: a sticky fault, after which the
/// context is of no use. The simulated runtime must be told which device that is; a GPU knows.
[[nodiscard]] inline kernel_call illegal_address_call() {
  int device = 0;
  static_cast<void>(cudaGetDevice(&device));
  return kernel_call{kernel_id::illegal_address, device};
}
/// Sets a conditional node's value to `*cell`.
[[nodiscard]] inline kernel_call set_condition_call(cudaGraphConditionalHandle condition,
                                                    int const* cell) {
  return kernel_call{kernel_id::set_condition, condition, cell};
}
/// Sets a conditional node's value to 1 if `*cell` is below `limit`, to 0 if not.
[[nodiscard]] inline kernel_call set_condition_below_call(cudaGraphConditionalHandle condition,
                                                          int const* cell, int limit) {
  return kernel_call{kernel_id::set_condition_below, condition, cell, limit};
}

/// Sets `*cell` to the number of blocks in a cluster of its launch.
[[nodiscard]] inline kernel_call cluster_size_call(int* cell) {
  return kernel_call{kernel_id::cluster_size, cell};
}

/// Code for cudaLibraryLoadData with two kernels: "library_add", which is add_call's, and
/// "library_tiny".
[[nodiscard]] void const* library_code();
/// Lets cudaLibraryLoadFromFile find the same code under `path`.
void provide_library_file(char const* path);

/// A launch attribute that is a number, or clusters of so many blocks along x.
[[nodiscard]] inline cudaLaunchAttribute attribute_of(cudaLaunchAttributeID id, int value) {
  cudaLaunchAttribute result{};
  result.id = id;
  result.val.cooperative = value;
  bool const is_cluster = id == cudaLaunchAttributeClusterDimension ||
                          id == cudaLaunchAttributePreferredClusterDimension;
  if (is_cluster) result.val.clusterDim = {static_cast<unsigned>(value), 1, 1};
  return result;
}

[[nodiscard]] inline cudaError_t launch_add(cudaStream_t stream, int* cell, int value) {
  return add_call(cell, value).launch(stream);
}
[[nodiscard]] inline cudaError_t launch_fill(cudaStream_t stream, int* data, std::size_t n,
                                             int value) {
  return fill_call(data, n, value).launch(stream);
}
[[nodiscard]] inline cudaError_t launch_check(cudaStream_t stream, int const* data, std::size_t n,
                                              int expected, int* mismatches) {
  return check_call(data, n, expected, mismatches).launch(stream);
}
[[nodiscard]] inline cudaError_t launch_copy(cudaStream_t stream, int* to, int const* from,
                                             std::size_t n) {
  return copy_call(to, from, n).launch(stream);
}
[[nodiscard]] inline cudaError_t launch_wait_flag(cudaStream_t stream, int volatile* flag) {
  return wait_flag_call(flag).launch(stream);
}
[[nodiscard]] inline cudaError_t launch_tiny(cudaStream_t stream) {
  return tiny_call().launch(stream);
}
[[nodiscard]] inline cudaError_t launch_sleep(cudaStream_t stream, std::uint64_t microseconds) {
  return sleep_call(microseconds).launch(stream);
}
[[nodiscard]] inline cudaError_t launch_illegal_address(cudaStream_t stream) {
  return illegal_address_call().launch(stream);
}

}  // namespace escrow::test
