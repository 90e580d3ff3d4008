// What is known of the GPU's work after a sticky fault.
#include "escrow/core/after_fault.hpp"

#include <atomic>

#include "escrow/core/cuda_error.hpp"
#include "escrow/core/device_scope.hpp"

namespace escrow {

namespace {

// What cannot be asked counts as used.
bool are_several_in_use() noexcept {
  int count = 0;
  if (!succeeded(cudaGetDeviceCount(&count))) return true;
  int used = 0;
  for (int device = 0; count > 1 && device < count; ++device) {
    if (is_in_use(device)) ++used;
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
