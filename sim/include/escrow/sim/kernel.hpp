// SPDX-License-Identifier: Apache-2.0
// Kernels of the simulated runtime: host functions that stand in for device code.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace escrow::sim {

// A kernel's body. It gets a pointer to each argument, as cudaLaunchKernel does. It returns true
// when the kernel is done; false means "not yet, call me again". So a kernel waits for a flag or
// for time to pass. The arguments are this launch's own copies and keep what the body writes to
// them from one call to the next. No lock of the simulator is held while it runs. A body calls no
// CUDA function.
using kernel = bool (*)(void** args);

// Makes `fn` run whenever the kernel at `address` is launched; `arg_sizes` are the sizes of its
// arguments in bytes, which are copied at the launch, or when a node is made; `name` is what
// cudaFuncGetName says. Any thread. Outlives reset().
void register_kernel(void const* address, kernel fn, std::vector<std::size_t> arg_sizes,
                     std::string name = "kernel");

namespace detail {
// What an argument of so many bytes as a pointer has may be.
enum class argument_kind : std::uint8_t { unknown, value, pointer, pointer_to_const };
template <class T>
inline constexpr argument_kind kind_of =
    !std::is_pointer_v<T> || std::is_function_v<std::remove_pointer_t<T>> ? argument_kind::value
    : !std::is_const_v<std::remove_pointer_t<T>>                          ? argument_kind::pointer
    : std::is_volatile_v<std::remove_pointer_t<T>> ? argument_kind::unknown  // others may write it
                                                   : argument_kind::pointer_to_const;

// For register_kernel<function>(), which knows the parameters' types.
void register_typed_kernel(void const* address, kernel fn, std::vector<std::size_t> arg_sizes,
                           std::vector<argument_kind> arg_kinds, std::string name);
}  // namespace detail

// The same for a host function whose parameters are the kernel's: register_kernel<&add>("add")
// makes it run whenever it is launched as a kernel. Returns it, for launches. May be called again.
template <auto function>
auto register_kernel(std::string const& name = "kernel") {
  [&]<class... P>(void (*)(P...)) {
    [&]<std::size_t... I>(std::index_sequence<I...>) {
      kernel const run = []([[maybe_unused]] void** args) {
        function(*static_cast<P*>(args[I])...);
        return true;
      };
      detail::register_typed_kernel(reinterpret_cast<void const*>(function), run, {sizeof(P)...},
                                    {detail::kind_of<P>...}, name);
    }
    (std::index_sequence_for<P...>{});
  }(function);
  return function;
}

// How long the kernel that calls this has been running. Inside a kernel body only; virtual time if
// stepped.
[[nodiscard]] std::chrono::nanoseconds kernel_elapsed();

// How many blocks a cluster of the kernel that calls this has along x; 1 without clusters. Inside
// a kernel body only.
[[nodiscard]] unsigned int cluster_blocks();

// Sets a conditional node's value, as cudaGraphSetConditional does in device code. Inside a kernel
// body.
void set_conditional(cudaGraphConditionalHandle handle, unsigned int value);

}  // namespace escrow::sim
