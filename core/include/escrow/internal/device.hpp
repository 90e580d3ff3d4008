// SPDX-License-Identifier: Apache-2.0
// Functions of the CUDA driver, which the runtime finds by name; the current device, devices in
// use, and the consequences of a lost device.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "escrow/core/error.hpp"
#include "escrow/core/stream.hpp"

namespace escrow::inline v0_2 {

// The function of that name, with the parameters that it had in that CUDA version. Throws
// cuda_error.
template <class Function>
[[nodiscard]] Function find_in_driver(char const* name, unsigned since) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  check(cudaGetDriverEntryPointByVersion(name, &found, since, cudaEnableLegacyStream, &result),
        "cudaGetDriverEntryPointByVersion");
  if (found == nullptr) throw cuda_error(cudaErrorSymbolNotFound, name);
  return reinterpret_cast<Function>(found);
}

// Throws cuda_error unless `result`, a CUresult, is CUDA_SUCCESS. The numbers are those of
// cudaError_t. The runtime's last error is not touched.
inline void check_driver(int result, char const* call) {
  if (result != cudaSuccess) throw cuda_error(static_cast<cudaError_t>(result), call);
}

// The calling thread's current device. Throws cuda_error. Source: cudaGetDevice.
[[nodiscard]] int current_device();

// Whether the handle names a different stream on each device.
[[nodiscard]] inline bool is_ambiguous(cudaStream_t stream) noexcept {
  return stream == nullptr || stream == cudaStreamLegacy || stream == cudaStreamPerThread;
}

// Of the calling thread; no other thread of the process ever gets it. Not 0.
[[nodiscard]] std::uint64_t thread_number() noexcept;

// Whether this process has a primary context on `device`; creates none. True if CUDA does not tell.
// Any thread. Source: cuDevicePrimaryCtxGetState.
[[nodiscard]] bool is_in_use(int device) noexcept;

// The id of the device's primary context, which is never used again, also after a reset. Makes the
// context if there is none. Throws cuda_error. Any thread. The runtime's last error is not touched.
[[nodiscard]] unsigned long long context_id_of(int device);

// The device of `stream`, which captures. Harms no capture and creates no context. 0.03 to 0.04 us,
// also on many threads: the driver is asked for the stream's context each time, and the thread
// remembers the devices of contexts. Throws cuda_error. Any thread. Source: cuStreamGetCtx.
[[nodiscard]] int device_of_capturing(stream_ref stream);

// Sets the calling thread's current device and restores the previous one on destruction, on the
// same thread: pushes the device's primary context, since cudaSetDevice back would make a context
// on a device that the thread never used (measured). Capture-safe. The constructor throws
// cuda_error and then has changed nothing. Exported for adapters.
class [[nodiscard]] ESCROW_API device_scope {
 public:
  explicit device_scope(int device);
  device_scope(device_scope&&) = delete;
  ~device_scope();

 private:
  int device_;
  int previous_;
  bool is_pushed_ = false;
};

// A sticky fault affects the whole process: from then on every call returns it, for any device (the
// CUDA runtime: "leaves the process in an inconsistent state"). The failed device runs nothing any
// more. Other devices complete their work, but CUDA does not report when, and meanwhile destroys
// the user objects of their execs. (Measured on two H200s, CUDA 13.0.)

// Whether `status`, of any call, means that no device runs work of this process any more: it is
// sticky, and no other device is in use. Capture-safe. Any thread.
[[nodiscard]] bool runs_nothing_after(cudaError_t status) noexcept;

// Asks CUDA for a sticky fault. True if there is one and another device may still run: what CUDA
// reports as unused may be in use. The current device must be in use. Capture-safe. Any thread.
[[nodiscard]] bool may_work_go_on_untold() noexcept;

}  // namespace escrow::inline v0_2
