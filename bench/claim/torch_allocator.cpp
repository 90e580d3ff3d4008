// PyTorch's caching allocator for the claim bench, as its C++ code calls it.
#include <c10/cuda/CUDACachingAllocator.h>

#include <memory>

#include "claim_arms.hpp"

// In libc10_cuda.so, and in no header.
namespace c10::cuda::_internal {
C10_CUDA_API void setHasPrimaryContext(bool (*has)(DeviceIndex));
}

namespace escrow::bench {

claim_setup pytorch_allocator() {
  namespace caching = c10::cuda::CUDACachingAllocator;
  // What libtorch_cuda.so does when it is loaded.
  c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex) { return true; });
  caching::init(1);
  std::shared_ptr<void> const cache(nullptr, [](void*) { caching::emptyCache(); });
  return by_stream([cache](cudaStream_t stream) {
    caching::raw_delete(caching::raw_alloc_with_stream(claimed_bytes, stream));
  });
}

}  // namespace escrow::bench
