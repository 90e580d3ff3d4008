// SPDX-License-Identifier: Apache-2.0
// Registered kernels, and what a launch of one copies.
#pragma once

#include "call.hpp"

namespace escrow::sim::model {

// As an H200 has it for kernels that need few registers.
inline constexpr int max_threads_per_block = 1024;
inline constexpr int max_shared_bytes = 48 * 1024;

// The code of a kernel by its address, or by its handle if it is a library's; null if there is
// none. That of an unloaded library is found as well.
kernel_code const* find_code(void const* func);

// Sets `out` to a launch of the kernel with copies of the arguments. Grids, blocks and shared
// memory that are too large, and empty grids and blocks, are cudaErrorInvalidValue (measured).
cudaError_t make_kernel_work(cudaKernelNodeParams const& params, kernel_work& out);

}  // namespace escrow::sim::model

// For a library under test: what a kernel is registered or loaded with; false: there is none. The
// texts and numbers stay. Any thread.
extern "C" [[gnu::visibility("hidden")]] bool escrow_simulated_parameters(
    void const* kernel, char const** name, std::size_t const** sizes, std::size_t* count) noexcept;
