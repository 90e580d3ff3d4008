// cub::CachingDeviceAllocator for the claim bench.
#include "cub_allocator.hpp"

#include <cub/util_allocator.cuh>
#include <stdexcept>

namespace escrow::bench {
namespace {

void must(cudaError_t status) {
  if (status != cudaSuccess) throw std::runtime_error(cudaGetErrorName(status));
}

class caching_allocator final : public cub_allocator {
 public:
  void* allocate(std::size_t bytes, cudaStream_t stream) override {
    void* memory = nullptr;
    must(cub_.DeviceAllocate(&memory, bytes, stream));
    return memory;
  }
  void free(void* memory) override { must(cub_.DeviceFree(memory)); }

 private:
  // Bins of 512 B to 2 MiB, as by default, with room for more than the default 6 MB.
  static constexpr std::size_t cached_bytes_max = std::size_t{1} << 30;
  cub::CachingDeviceAllocator cub_{8, 3, 7, cached_bytes_max};
};

}  // namespace

std::unique_ptr<cub_allocator> make_cub_allocator() {
  return std::make_unique<caching_allocator>();
}

}  // namespace escrow::bench
