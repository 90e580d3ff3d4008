// SPDX-License-Identifier: Apache-2.0
// Registered kernels, and what a launch of one copies.
#include "kernels.hpp"

#include "claims.hpp"
#include "overruns.hpp"
#include "thread.hpp"

#include <cstdint>

namespace escrow::sim::model {
namespace {

bool is_within(dim3 const& size, dim3 const& max) {
  return size.x != 0 && size.y != 0 && size.z != 0 && size.x <= max.x && size.y <= max.y &&
         size.z <= max.z;
}

constexpr dim3 grid_max{0x7fffffff, 65535, 65535};
constexpr dim3 block_max{max_threads_per_block, max_threads_per_block, 64};

bool has_too_many_threads(dim3 const& block) {
  constexpr std::uint64_t max = max_threads_per_block;
  // One after the other: the product of all three may be more than the type holds.
  auto const of_plane = std::uint64_t{block.x} * block.y;
  return of_plane > max || of_plane * block.z > max;
}

}  // namespace

kernel_code const* find_code(void const* func) {
  auto const& s = the();
  if (auto const found = s.kernels.find(func); found != s.kernels.end()) return &found->second;
  auto const found = s.library_kernels.find(func);
  return found == s.library_kernels.end() ? nullptr : &found->second->code;
}

cudaError_t make_kernel_work(cudaKernelNodeParams const& params, kernel_work& out) {
  auto const* const code = find_code(params.func);
  if (code == nullptr) return cudaErrorInvalidResourceHandle;
  if (!is_within(params.gridDim, grid_max) || !is_within(params.blockDim, block_max) ||
      has_too_many_threads(params.blockDim) ||
      params.sharedMemBytes > std::size_t{max_shared_bytes})
    return cudaErrorInvalidValue;
  if (!code->arg_sizes.empty() && params.kernelParams == nullptr) return cudaErrorInvalidValue;
  out.code = code;
  out.device = this_thread_unchecked().device;
  out.args = kernel_args(code->arg_sizes, params.kernelParams);
  out.guards = guards_of(*code, out.args);
  out.shape = params;
  note_constants(out);
  return cudaSuccess;
}

}  // namespace escrow::sim::model

namespace escrow::sim {

void register_kernel(void const* address, kernel fn, std::vector<std::size_t> arg_sizes,
                     std::string name) {
  detail::register_typed_kernel(address, fn, std::move(arg_sizes), {}, std::move(name));
}

void detail::register_typed_kernel(void const* address, kernel fn,
                                   std::vector<std::size_t> arg_sizes,
                                   std::vector<argument_kind> arg_kinds, std::string name) {
  auto& s = model::the();
  std::lock_guard lock(s.mutex);
  // Never replaced: launches that are pending point to the entry.
  s.kernels.try_emplace(address, model::kernel_code{address, fn, std::move(arg_sizes),
                                                    std::move(name), std::move(arg_kinds)});
}

}  // namespace escrow::sim

bool escrow_simulated_parameters(void const* kernel, char const** name, std::size_t const** sizes,
                                 std::size_t* count) noexcept {
  auto& s = escrow::sim::model::the();
  std::lock_guard const lock(s.mutex);
  escrow::sim::model::kernel_code const* const found = escrow::sim::model::find_code(kernel);
  if (found == nullptr) return false;
  *name = found->name.c_str();
  *sizes = found->arg_sizes.data();
  *count = found->arg_sizes.size();
  return true;
}
