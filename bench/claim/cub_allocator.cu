// cub::CachingDeviceAllocator for the claim bench.
#include <cub/util_allocator.cuh>
#include <memory>

#include "claim_arms.hpp"

namespace escrow::bench {

claim_setup cub_allocator() {
  // Bins of 512 B to 2 MiB, as by default, with room for more than the default 6 MB.
  constexpr std::size_t cached_bytes_max = std::size_t{1} << 30;
  auto const cub = std::make_shared<cub::CachingDeviceAllocator>(8, 3, 7, cached_bytes_max);
  return by_stream([cub](cudaStream_t stream) {
    void* memory = nullptr;
    test::must(cub->DeviceAllocate(&memory, claimed_bytes, stream));
    test::must(cub->DeviceFree(memory));
  });
}

}  // namespace escrow::bench
