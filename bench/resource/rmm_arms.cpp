// RMM's memory resources for the resource bench, one of them on Escrow's memory.
#include <escrow/memory_resource.hpp>
#include <rmm/mr/arena_memory_resource.hpp>
#include <rmm/mr/cuda_async_memory_resource.hpp>
#include <rmm/mr/cuda_memory_resource.hpp>
#include <rmm/mr/pool_memory_resource.hpp>

#include "resource_arms.hpp"

namespace escrow::bench {
namespace {

// More than all threads allocate, so that none grows.
constexpr std::size_t initial_bytes = std::size_t{4} << 30;

rmm::mr::pool_memory_resource pool() {
  return rmm::mr::pool_memory_resource(rmm::mr::cuda_memory_resource(), initial_bytes);
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

}  // namespace

claim_setup rmm_pool_pairs() {
  return pairs_of(pool());
}
claim_setup rmm_pool_random() {
  return random_of(pool());
}
claim_setup rmm_pool_on_escrow_pairs() {
  return pairs_of(pool_on_escrow());
}
claim_setup rmm_pool_on_escrow_random() {
  return random_of(pool_on_escrow());
}
claim_setup rmm_arena_pairs() {
  return pairs_of(arena());
}
claim_setup rmm_arena_random() {
  return random_of(arena());
}
claim_setup rmm_cuda_async_pairs() {
  return pairs_of(cuda_async());
}
claim_setup rmm_cuda_async_random() {
  return random_of(cuda_async());
}

}  // namespace escrow::bench
