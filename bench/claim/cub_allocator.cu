// SPDX-License-Identifier: Apache-2.0
// cub::CachingDeviceAllocator for the claim bench.
#include <cub/util_allocator.cuh>
#include <memory>

#include "claim_arms.hpp"
#include "handles.hpp"

namespace escrow::bench {

claim_setup cub_allocator() {
  // Bins of 512 B to 2 MiB, as by default, with room for more than the default 6 MB.
  constexpr std::size_t cached_bytes_max = std::size_t{1} << 30;
  auto const cub = std::make_shared<cub::CachingDeviceAllocator>(8, 3, 7, cached_bytes_max);
  return [cub](claim_streams const& mine) -> claim_pair {
    auto const event = std::make_shared<test::owned_event>(test::make_event());
    return [cub, event, mine](std::size_t on, std::size_t last) {
      void* memory = nullptr;
      test::must(cub->DeviceAllocate(&memory, claimed_bytes, mine[on]));
      if (last != on) {  // it records on the claiming stream, which has to wait for the other one
        test::must(cudaEventRecord(*event, mine[last]));
        test::must(cudaStreamWaitEvent(mine[on], *event, 0));
      }
      test::must(cub->DeviceFree(memory));
    };
  };
}

}  // namespace escrow::bench
