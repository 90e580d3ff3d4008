// SPDX-License-Identifier: Apache-2.0
// PyTorch's caching allocator for the claim bench, as its C++ code calls it.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>

#include <memory>

#include "claim_arms.hpp"

// In libc10_cuda.so, and in no header.
namespace c10::cuda::_internal {
C10_CUDA_API void setHasPrimaryContext(bool (*has)(DeviceIndex));
}

namespace escrow::bench {

claim_setup pytorch_allocator() {
  namespace caching = c10::cuda::CUDACachingAllocator;
  // What libtorch_cuda.so does when it is loaded; else a claim after a free on another stream
  // fails.
  c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex) { return true; });
  caching::init(1);
  std::shared_ptr<void> const cache(nullptr, [](void*) { caching::emptyCache(); });
  return by_stream([cache](cudaStream_t on, cudaStream_t last) {
    void* const memory = caching::raw_alloc_with_stream(claimed_bytes, on);
    if (last != on) {
      // What Tensor.record_stream() does. The pointer is as a tensor's storage has it.
      c10::DataPtr const data(memory, memory, caching::get()->raw_deleter(),
                              c10::Device(c10::kCUDA, 0));
      caching::recordStream(data, c10::cuda::getStreamFromExternal(last, 0));
      return;  // its destructor frees
    }
    caching::raw_delete(memory);
  });
}

}  // namespace escrow::bench
