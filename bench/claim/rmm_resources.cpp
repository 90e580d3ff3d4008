// RMM's pool and fixed-size resources for the claim bench.
#include <memory>
#include <rmm/aligned.hpp>
#include <rmm/mr/cuda_memory_resource.hpp>
#include <rmm/mr/fixed_size_memory_resource.hpp>
#include <rmm/mr/pool_memory_resource.hpp>

#include "claim_arm.hpp"

namespace escrow::bench {
namespace {

// A block that is freed on another stream is that stream's from then on.
template <class Resource>
claim_setup allocations_of(Resource resource) {
  return by_stream([shared = std::make_shared<Resource>(std::move(resource))](cudaStream_t on,
                                                                              cudaStream_t last) {
    constexpr std::size_t alignment = rmm::CUDA_ALLOCATION_ALIGNMENT;
    void* const memory = shared->allocate(cuda::stream_ref(on), claimed_bytes, alignment);
    shared->deallocate(cuda::stream_ref(last), memory, claimed_bytes, alignment);
  });
}

}  // namespace

claim_setup rmm_pool() {
  constexpr std::size_t initial_bytes = std::size_t{1} << 30;
  return allocations_of(
      rmm::mr::pool_memory_resource(rmm::mr::cuda_memory_resource(), initial_bytes));
}

claim_setup rmm_fixed_size() {
  return allocations_of(
      rmm::mr::fixed_size_memory_resource(rmm::mr::cuda_memory_resource(), claimed_bytes));
}

}  // namespace escrow::bench
