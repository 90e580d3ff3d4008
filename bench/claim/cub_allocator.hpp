// cub::CachingDeviceAllocator behind functions, because CUB needs nvcc. C++17, for the same reason.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>

namespace escrow::bench {

class cub_allocator {
 public:
  virtual ~cub_allocator() = default;
  virtual void* allocate(std::size_t bytes, cudaStream_t stream) = 0;
  virtual void free(void* memory) = 0;
};

// Null on the simulated runtime, where there is no CUB.
std::unique_ptr<cub_allocator> make_cub_allocator();

}  // namespace escrow::bench
