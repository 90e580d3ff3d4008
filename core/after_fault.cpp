// Which devices are in use: those that have a context.
#include "escrow/core/after_fault.hpp"

#include <cuda.h>

#include <atomic>

#include "escrow/core/cuda_error.hpp"

namespace escrow {

namespace {

using context_state_function = CUresult(CUDAAPI*)(CUdevice, unsigned*, int*);

// The driver's: the runtime has no such question that makes no context. Null if it is not found.
context_state_function find_context_state() noexcept {
  constexpr unsigned since = 7000;
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  cudaError_t const status = cudaGetDriverEntryPointByVersion("cuDevicePrimaryCtxGetState", &found,
                                                              since, cudaEnableDefault, &result);
  return succeeded(status) ? reinterpret_cast<context_state_function>(found) : nullptr;
}

// What cannot be asked counts as used.
bool are_several_in_use() noexcept {
  int count = 0;
  if (!succeeded(cudaGetDeviceCount(&count))) return true;
  context_state_function const context_state = count > 1 ? find_context_state() : nullptr;
  if (context_state == nullptr) return count > 1;
  int used = 0;
  for (CUdevice device = 0; device < count; ++device) {
    unsigned flags = 0;
    int is_active = 0;
    CUresult const status = context_state(device, &flags, &is_active);
    if (status != CUDA_SUCCESS || is_active != 0) ++used;
  }
  return used > 1;
}

bool may_other_devices_run() noexcept {
  // Once seen, for ever: the failed device may have been reset meanwhile, and the other is not.
  // Relaxed: who finds it false asks.
  static constinit std::atomic<bool> were_several{false};
  if (were_several.load(std::memory_order_relaxed)) return true;
  if (!are_several_in_use()) return false;
  were_several.store(true, std::memory_order_relaxed);
  return true;
}

}  // namespace

bool runs_nothing_after(cudaError_t status) noexcept {
  return is_sticky(status) && !may_other_devices_run();
}

bool may_work_go_on_untold() noexcept {
  cudaStreamCaptureStatus ignored = cudaStreamCaptureStatusNone;
  cudaError_t const status = cudaStreamIsCapturing(cudaStreamPerThread, &ignored);
  return !succeeded(status) && is_sticky(status) && may_other_devices_run();
}

}  // namespace escrow
