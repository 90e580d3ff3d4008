// SPDX-License-Identifier: Apache-2.0
// RMM's memory resources for the claim and the resource bench, one of them on Escrow's memory.
#include <escrow/memory_resource.hpp>
#include <rmm/mr/arena_memory_resource.hpp>
#include <rmm/mr/cuda_async_memory_resource.hpp>
#include <rmm/mr/cuda_memory_resource.hpp>
#include <rmm/mr/fixed_size_memory_resource.hpp>
#include <rmm/mr/pool_memory_resource.hpp>

#include "resource_arms.hpp"

namespace escrow::bench {
namespace {

// More than all threads of the benches allocate, so that none grows.
constexpr std::size_t gib = std::size_t{1} << 30, initial_bytes = 4 * gib;

template <std::size_t bytes>
rmm::mr::pool_memory_resource pool() {
  return rmm::mr::pool_memory_resource(rmm::mr::cuda_memory_resource(), bytes);
}
rmm::mr::pool_memory_resource pool_on_escrow() {
  return rmm::mr::pool_memory_resource(memory_resource(), initial_bytes);
}
rmm::mr::arena_memory_resource arena() {
  return rmm::mr::arena_memory_resource(rmm::mr::cuda_memory_resource(), initial_bytes);
}
rmm::mr::cuda_async_memory_resource cuda_async() {
  return rmm::mr::cuda_async_memory_resource(initial_bytes, initial_bytes);
}
rmm::mr::fixed_size_memory_resource fixed_size() {
  return rmm::mr::fixed_size_memory_resource(rmm::mr::cuda_memory_resource(), claimed_bytes);
}

}  // namespace

claim_setup rmm_pool() {
  return pairs_of<&pool<gib>>();
}
claim_setup rmm_fixed_size() {
  return pairs_of<&fixed_size>();
}

std::vector<claim_arm> rmm_arms(bool is_random) {
  return {
      {"rmm_pool", setup_of<&pool<initial_bytes>>(is_random), some},
      {"rmm_pool_on_escrow", setup_of<&pool_on_escrow>(is_random), some},
      {"rmm_arena", setup_of<&arena>(is_random), some},
      {"rmm_cuda_async", setup_of<&cuda_async>(is_random), some},
  };
}

}  // namespace escrow::bench
