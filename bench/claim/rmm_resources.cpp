// RMM's pool and fixed-size resources for the claim bench.
#include <rmm/mr/cuda_memory_resource.hpp>
#include <rmm/mr/fixed_size_memory_resource.hpp>
#include <rmm/mr/pool_memory_resource.hpp>

#include "resource_arms.hpp"

namespace escrow::bench {

claim_setup rmm_pool() {
  constexpr std::size_t initial_bytes = std::size_t{1} << 30;
  return pairs_of(rmm::mr::pool_memory_resource(rmm::mr::cuda_memory_resource(), initial_bytes));
}

claim_setup rmm_fixed_size() {
  return pairs_of(
      rmm::mr::fixed_size_memory_resource(rmm::mr::cuda_memory_resource(), claimed_bytes));
}

}  // namespace escrow::bench
