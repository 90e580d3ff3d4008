// The kernels that tests and benches launch: one set of names for the simulated runtime and for a
// GPU.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

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
  // Those of whole computations, in "What the kernels of computations work on" below.
  heat_step,
  heat_go_on
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
  [[nodiscard]] cudaKernelNodeParams params();

  /// One block on `stream`.
  [[nodiscard]] cudaError_t launch(cudaStream_t stream);

 private:
  static constexpr std::size_t arguments_max = 4;

  template <class Argument>
  void store(Argument const& argument) {
    static_assert(sizeof(Argument) <= sizeof(std::uint64_t));
    std::memcpy(&values_[count_++], &argument, sizeof(Argument));
  }
  void** pointers();

  kernel_id id_;
  std::size_t count_ = 0;
  std::array<std::uint64_t, arguments_max> values_{};
  std::array<void*, arguments_max> pointers_{};
};

/// Adds `value` to `*cell`, atomically and with relaxed order.
[[nodiscard]] kernel_call add_call(int* cell, int value);
/// Sets `n` elements to `value`.
[[nodiscard]] kernel_call fill_call(int* data, std::size_t n, int value);
/// Adds to `*mismatches` how many of `n` elements differ from `expected`.
[[nodiscard]] kernel_call check_call(int const* data, std::size_t n, int expected, int* mismatches);
/// Copies `n` elements.
[[nodiscard]] kernel_call copy_call(int* to, int const* from, std::size_t n);
/// Runs until `*flag`, in pinned host memory, is not zero; on a GPU for 20 s at most.
[[nodiscard]] kernel_call wait_flag_call(int volatile* flag);
/// Does nothing. So does the kernel two_pointers, which takes two of int*.
[[nodiscard]] kernel_call tiny_call();
/// Runs for about `microseconds`.
[[nodiscard]] kernel_call sleep_call(std::uint64_t microseconds);
/// Writes to an illegal address of the device that is current now: a sticky fault, after which the
/// context is of no use.
[[nodiscard]] kernel_call illegal_address_call();
/// Sets a conditional node's value to `*cell`.
[[nodiscard]] kernel_call set_condition_call(cudaGraphConditionalHandle condition, int const* cell);
/// Sets a conditional node's value to 1 if `*cell` is below `limit`, to 0 if not.
[[nodiscard]] kernel_call set_condition_below_call(cudaGraphConditionalHandle condition,
                                                   int const* cell, int limit);

// What the kernels of computations work on. They are launched as nodes, with these arguments:
//   heat_step(double* to, double const* from, std::size_t n, double ratio): one explicit step of
//   the
//     1-D heat equation; the ends stay as they are. Rounds in one way everywhere.
//   heat_go_on(cudaGraphConditionalHandle, heat_progress*, heat_limits, double const* now,
//     double const* before, std::size_t n): counts a round, measures the residual, and sets the
//     condition to whether there has to be another.

/// How far a diffusion has come.
struct heat_progress {
  int rounds;
  double residual;  // the largest change of an element
};

/// When a diffusion ends: after so many rounds, or with a residual that is no larger.
struct heat_limits {
  int rounds_max;
  double residual;
};

/// Code for cudaLibraryLoadData with two kernels: "library_add", which is add_call's, and
/// "library_tiny".
[[nodiscard]] void const* library_code();
/// Lets cudaLibraryLoadFromFile find the same code under `path`.
void provide_library_file(char const* path);

[[nodiscard]] cudaError_t launch_add(cudaStream_t stream, int* cell, int value);
[[nodiscard]] cudaError_t launch_fill(cudaStream_t stream, int* data, std::size_t n, int value);
[[nodiscard]] cudaError_t launch_check(cudaStream_t stream, int const* data, std::size_t n,
                                       int expected, int* mismatches);
[[nodiscard]] cudaError_t launch_copy(cudaStream_t stream, int* to, int const* from, std::size_t n);
[[nodiscard]] cudaError_t launch_wait_flag(cudaStream_t stream, int volatile* flag);
[[nodiscard]] cudaError_t launch_tiny(cudaStream_t stream);
[[nodiscard]] cudaError_t launch_sleep(cudaStream_t stream, std::uint64_t microseconds);
[[nodiscard]] cudaError_t launch_illegal_address(cudaStream_t stream);

}  // namespace escrow::test
