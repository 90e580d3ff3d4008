// What the claim bench's arms consist of, and the arm that needs nvcc.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>

namespace escrow::bench {

// What all arms claim: as much memory as an arm that allocates memory is asked for.
constexpr std::size_t claimed_bytes = std::size_t{1} << 20;

// Claims and releases once on a stream.
using claim_pair = std::function<void(cudaStream_t)>;
// What the threads share: makes the pair of the calling thread.
using claim_setup = std::function<claim_pair()>;

// cub::CachingDeviceAllocator. Not defined on the simulated runtime, where there is no CUB.
[[gnu::weak]] claim_setup cub_allocator();

}  // namespace escrow::bench
