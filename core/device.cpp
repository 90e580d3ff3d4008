// SPDX-License-Identifier: Apache-2.0
// The current device, devices in use, and lost devices.
#include "escrow/internal/device.hpp"

#include <cuda.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <exception>

#include "escrow/core/error.hpp"
#include "escrow/internal/retry_cleanup.hpp"

namespace escrow::inline v0_2 {

std::uint64_t thread_number() noexcept {
  static std::atomic<std::uint64_t> last{0};  // relaxed: only needs to be unique
  thread_local std::uint64_t const number = last.fetch_add(1, std::memory_order_relaxed) + 1;
  return number;
}

int current_device() {
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  return device;
}

bool is_in_use(int device) noexcept {
  using state_function = CUresult(CUDAAPI*)(CUdevice, unsigned*, int*);
  try {
    // From the driver: the runtime's queries create a context.
    static auto const state = find_in_driver<state_function>("cuDevicePrimaryCtxGetState", 7000);
    unsigned flags = 0;
    int is_active = 0;
    return state(device, &flags, &is_active) != CUDA_SUCCESS || is_active != 0;
  } catch (std::exception const&) {
    return true;
  }
}

namespace {

// Functions of the driver, which harm no capture, as the runtime's cudaStreamGetDevice would.
// Throws cuda_error.
struct context_functions {
  CUresult(CUDAAPI* retain)(CUcontext*,
                            CUdevice) = find_in_driver<decltype(retain)>("cuDevicePrimaryCtxRetain",
                                                                         7000);
  CUresult(CUDAAPI* release)(CUdevice) =
      find_in_driver<decltype(release)>("cuDevicePrimaryCtxRelease", 11000);
  CUresult(CUDAAPI* id)(CUcontext, unsigned long long*) = find_in_driver<decltype(id)>("cuCtxGetId",
                                                                                       12000);
  CUresult(CUDAAPI* of_stream)(CUstream,
                               CUcontext*) = find_in_driver<decltype(of_stream)>("cuStreamGetCtx",
                                                                                 9020);
  CUresult(CUDAAPI* device)(CUdevice*) = find_in_driver<decltype(device)>("cuCtxGetDevice", 2000);
  CUresult(CUDAAPI* push)(CUcontext) = find_in_driver<decltype(push)>("cuCtxPushCurrent", 4000);
  CUresult(CUDAAPI* pop)(CUcontext*) = find_in_driver<decltype(pop)>("cuCtxPopCurrent", 4000);
};

context_functions const& driver() {
  static context_functions const found;
  return found;
}

// Makes the context current on the calling thread, until it is popped.
void push_context(CUcontext context) {
  check_driver(driver().push(context), "cuCtxPushCurrent");
}

void pop_context() noexcept {
  CUcontext popped = nullptr;
  // Not retry_cleanup(), which would clear the runtime's last error.
  for (int attempt = 0; attempt < 3 && driver().pop(&popped) != CUDA_SUCCESS; ++attempt) {
  }
}

int device_in_driver(CUcontext context) {
  push_context(context);
  CUdevice device = 0;
  CUresult const result = driver().device(&device);
  pop_context();
  check_driver(result, "cuCtxGetDevice");
  return device;
}

}  // namespace

unsigned long long context_id_of(int device) {
  CUcontext context = nullptr;
  unsigned long long id = 0;
  check_driver(driver().retain(&context, device), "cuDevicePrimaryCtxRetain");
  CUresult const status = driver().id(context, &id);
  static_cast<void>(driver().release(device));
  check_driver(status, "cuCtxGetId");
  return id;
}

int device_of_capturing(stream_ref stream) {
  struct answer {
    unsigned long long context = 0;  // its id, which is never reused; handles are
    int device = 0;
  };
  // Of this thread, the one that was used last first. A context never changes its device.
  thread_local std::array<answer, 8> answers{};
  cudaStream_t const handle = stream.get();
  if (is_ambiguous(handle)) return current_device();
  context_functions const& its = driver();
  CUcontext context = nullptr;
  unsigned long long id = 0;
  CUresult const found = its.of_stream(handle, &context);
  CUresult const told = found == CUDA_SUCCESS ? its.id(context, &id) : CUDA_SUCCESS;
  if (found != CUDA_SUCCESS || told != CUDA_SUCCESS) [[unlikely]] {
    check_driver(found, "cuStreamGetCtx");
    check_driver(told, "cuCtxGetId");
  }
  auto known = std::ranges::find(answers, id, &answer::context);
  if (known == answers.end()) *--known = {id, device_in_driver(context)};
  std::rotate(answers.begin(), known, known + 1);
  return answers.front().device;
}

device_scope::device_scope(int device) : device_(device), previous_(current_device()) {
  if (previous_ == device) return;
  CUcontext context = nullptr;
  check_driver(driver().retain(&context, device), "cuDevicePrimaryCtxRetain");
  try {
    push_context(context);
  } catch (...) {
    static_cast<void>(driver().release(device));
    throw;
  }
  is_pushed_ = true;
}

device_scope::~device_scope() {
  if (!is_pushed_) return;
  pop_context();
  // The runtime, which has used the context by now, has a reference of its own (measured).
  static_cast<void>(driver().release(device_));
  int now = previous_;  // another one if cudaSetDevice was called meanwhile
  if (succeeded(cudaGetDevice(&now)) && now != previous_) {
    retry_cleanup([this] { return cudaSetDevice(previous_); });
  }
}

namespace {

// A device whose state is unknown counts as in use.
bool may_other_devices_run() noexcept {
  // Stays true: a reset may have cleared only the failed device. Relaxed: on false, CUDA is asked.
  static constinit std::atomic<bool> were_several{false};
  if (were_several.load(std::memory_order_relaxed)) return true;
  int count = 0;
  int used = 0;
  if (succeeded(cudaGetDeviceCount(&count))) {
    for (int device = 0; count > 1 && device < count; ++device) used += is_in_use(device) ? 1 : 0;
    // Again: another thread may have seen several before the failed device was reset.
    if (used <= 1) return were_several.load(std::memory_order_relaxed);
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

}  // namespace escrow::inline v0_2
