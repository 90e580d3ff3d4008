// Devices: the current one, those in use, and lost ones.
#include "escrow/detail/device.hpp"

#include <cuda.h>

#include <atomic>

#include "escrow/core/error.hpp"
#include "escrow/detail/retry_cleanup.hpp"

namespace escrow {

namespace {

using context_state_function = CUresult(CUDAAPI*)(CUdevice, unsigned*, int*);

// The driver's: the runtime has no such question that makes no context. Null if it is not found.
context_state_function find_context_state() noexcept {
  // Relaxed: each value is the same function of the driver, and nothing else is published.
  static constinit std::atomic<context_state_function> known{nullptr};
  if (auto* const found = known.load(std::memory_order_relaxed)) return found;
  constexpr unsigned since = 7000;
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  cudaError_t const status = cudaGetDriverEntryPointByVersion("cuDevicePrimaryCtxGetState", &found,
                                                              since, cudaEnableDefault, &result);
  if (!succeeded(status)) return nullptr;
  auto* const function = reinterpret_cast<context_state_function>(found);
  known.store(function, std::memory_order_relaxed);
  return function;
}

}  // namespace

int current_device() {
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  return device;
}

bool is_in_use(int device) noexcept {
  context_state_function const context_state = find_context_state();
  unsigned flags = 0;
  int is_active = 0;
  return context_state == nullptr || context_state(device, &flags, &is_active) != CUDA_SUCCESS ||
         is_active != 0;
}

device_scope::device_scope(int device) {
  previous_ = current_device();
  if (previous_ == device) return;
  cudaError_t const status = cudaSetDevice(device);
  // With a fault that came before, it may have been changed all the same.
  if (status != cudaSuccess) retry_cleanup([this] { return cudaSetDevice(previous_); });
  check(status, "cudaSetDevice");
  changed_ = true;
}

device_scope::~device_scope() {
  if (changed_) retry_cleanup([this] { return cudaSetDevice(previous_); });
}

namespace {

// What cannot be asked counts as used.
bool may_other_devices_run() noexcept {
  // Once true, it stays true: the failed device may have been reset meanwhile, and the other is
  // not. Relaxed: a thread that reads false asks CUDA.
  static constinit std::atomic<bool> were_several{false};
  if (were_several.load(std::memory_order_relaxed)) return true;
  int count = 0;
  int used = 0;
  if (succeeded(cudaGetDeviceCount(&count))) {
    for (int device = 0; count > 1 && device < count; ++device) used += is_in_use(device) ? 1 : 0;
    if (used <= 1) return false;
  }
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
