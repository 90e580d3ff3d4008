// PyTorch's caching allocator for the claim bench, as its C++ code calls it.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>

#include <memory>

#include "claim_arm.hpp"

namespace escrow::bench {

claim_setup pytorch_allocator() {
  namespace caching = c10::cuda::CUDACachingAllocator;
  caching::init(1);
  std::shared_ptr<void> const cache(nullptr, [](void*) { caching::emptyCache(); });
  return by_stream([cache](cudaStream_t on, cudaStream_t last) {
    void* const memory = caching::raw_alloc_with_stream(claimed_bytes, on);
    if (last != on) {
      // What Tensor.record_stream() does. The pointer of a tensor's storage, without its owner.
      c10::DataPtr const data(memory, memory, caching::get()->raw_deleter(),
                              c10::Device(c10::kCUDA, 0));
      caching::recordStream(data, c10::cuda::getStreamFromExternal(last, 0));
      return;  // its destructor frees
    }
    caching::raw_delete(memory);
  });
}

}  // namespace escrow::bench
