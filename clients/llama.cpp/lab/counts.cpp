// SPDX-License-Identifier: Apache-2.0
// Counters without a change in ggml-cuda, and a planted mistake: these functions stand before those
// of the same name.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <escrow/escrow.h>

#include <atomic>
#include <cstdlib>

#include "lab.hpp"

namespace {

std::atomic<std::int64_t> bytes_of_own_pool;
std::atomic<std::int64_t> begun_captures;

// The next function of the name, which is CUDA's. It is null where nothing has loaded CUDA.
template <class Function>
Function* next_of(char const* name) {
  auto* const found = reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
  if (found == nullptr) std::abort();
  return found;
}

template <class Function>
Function* find(char const* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}

}  // namespace

// In ggml-cuda only its pool calls these two. Escrow finds its own way to the driver.
CUresult CUDAAPI cuMemCreate(CUmemGenericAllocationHandle* handle, std::size_t bytes,
                             CUmemAllocationProp const* properties, unsigned long long flags) {
  static auto* const next = next_of<decltype(cuMemCreate)>("cuMemCreate");
  CUresult const status = next(handle, bytes, properties, flags);
  if (status == CUDA_SUCCESS) bytes_of_own_pool += static_cast<std::int64_t>(bytes);
  return status;
}

CUresult CUDAAPI cuMemUnmap(CUdeviceptr address, std::size_t bytes) {
  static auto* const next = next_of<decltype(cuMemUnmap)>("cuMemUnmap");
  CUresult const status = next(address, bytes);
  if (status == CUDA_SUCCESS) bytes_of_own_pool -= static_cast<std::int64_t>(bytes);
  return status;
}

cudaError_t CUDARTAPI cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  static auto* const next = next_of<decltype(cudaStreamBeginCapture)>("cudaStreamBeginCapture");
  ++begun_captures;
  return next(stream, mode);
}

// With LAB_STALE=1 what a capture claims is not the graph's, as with a pool that knows nothing of
// captures: it is eager memory, which is free again, while the graph has its address.
namespace {

cudaStream_t eager_if_stale(cudaStream_t stream) {
  static bool const is_planted = std::getenv("LAB_STALE") != nullptr;
  if (!is_planted) return stream;
  static auto* const ask = next_of<decltype(cudaStreamIsCapturing)>("cudaStreamIsCapturing");
  cudaStreamCaptureStatus status{};
  lab::require(ask(stream, &status) == cudaSuccess, "a stream cannot be asked whether it captures");
  if (status == cudaStreamCaptureStatusNone) return stream;
  static cudaStream_t const eager = [] {
    auto* const create = next_of<decltype(cudaStreamCreateWithFlags)>("cudaStreamCreateWithFlags");
    auto* const exchange = next_of<decltype(cudaThreadExchangeStreamCaptureMode)>(
        "cudaThreadExchangeStreamCaptureMode");
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    cudaStream_t made = nullptr;
    lab::require(exchange(&mode) == cudaSuccess &&
                     create(&made, cudaStreamNonBlocking) == cudaSuccess &&
                     exchange(&mode) == cudaSuccess,
                 "there is no second stream");
    return made;
  }();
  return eager;
}

}  // namespace

escrow_status escrow_allocator_allocate(escrow_allocator* allocator, cudaStream_t stream,
                                        size_t bytes, size_t alignment, void** out) {
  static auto* const next =
      next_of<decltype(escrow_allocator_allocate)>("escrow_allocator_allocate");
  return next(allocator, eager_if_stale(stream), bytes, alignment, out);
}

escrow_status escrow_allocator_free(escrow_allocator* allocator, cudaStream_t stream,
                                    void* memory) {
  static auto* const next = next_of<decltype(escrow_allocator_free)>("escrow_allocator_free");
  return next(allocator, eager_if_stale(stream), memory);
}

namespace lab {

pool_bytes pool() {
  auto* const statistics = find<decltype(escrow_process_statistics)>("escrow_process_statistics");
  if (statistics == nullptr) return {.taken = bytes_of_own_pool};
  escrow_process_stats stats{};
  stats.size = sizeof stats;
  require(statistics(-1, &stats) == ESCROW_OK, "there are no statistics");
  return {.taken = static_cast<std::int64_t>(stats.bytes_reserved),
          .in_graphs = static_cast<std::int64_t>(stats.bytes_in_graphs)};
}

std::int64_t captures() {
  return begun_captures;
}

}  // namespace lab
