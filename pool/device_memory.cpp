// Allocation and release of blocks.
#include "escrow/pool/device_memory.hpp"

#include "escrow/core/error.hpp"
#include "escrow/internal/last_error.hpp"
#include "escrow/internal/retry_cleanup.hpp"

namespace escrow::inline v0_1 {

namespace {

cudaError_t allocate_from(cudaMemPool_t pool, void** address, std::size_t bytes) noexcept {
  cudaStream_t own = nullptr;
  cudaError_t status = cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking);
  if (status != cudaSuccess) return status;
  status = cudaMallocFromPoolAsync(address, bytes, pool, own);
  if (status == cudaSuccess) {
    status = cudaStreamSynchronize(own);
    if (status != cudaSuccess) retry_cleanup([address] { return cudaFree(*address); });
  }
  retry_cleanup([own] { return cudaStreamDestroy(own); });
  return status;
}

}  // namespace

memory_source memory_source::device() {
  return {cudaMalloc, cudaFree, "cudaMalloc"};
}

memory_source memory_source::pinned_host() {
  return {cudaMallocHost, cudaFreeHost, "cudaMallocHost", true};
}

memory_source memory_source::from(cudaMemPool_t pool) {
  return {[pool](void** address, std::size_t bytes) { return allocate_from(pool, address, bytes); },
          cudaFree, "cudaMallocFromPoolAsync"};
}

device_block::device_block(std::size_t bytes, memory_source const& source, source_location where)
    : bytes_(bytes), free_(source.free) {
  if (!source.allocate || !source.free) {
    throw usage_error(usage_error("device_block", "`source` has no `allocate` or no `free`",
                                  "give it both, or use memory_source::device()"),
                      where);
  }
  // Out of memory is no surprise: a pool that grows then looks for other memory.
  cudaError_t const status = call_aside([&] { return source.allocate(&data_, bytes); });
  if (status != cudaSuccess) throw cuda_error(status, source.name, where);
  if (data_ == nullptr && bytes != 0) {
    throw cuda_error(cudaErrorMemoryAllocation, source.name, where,
                     "it returned success and a null address");
  }
}

device_block::~device_block() {
  if (data_ != nullptr) retry_cleanup([this] { return free_(data_); });
}

}  // namespace escrow::inline v0_1
