// The current device, which devices are in use, and what a lost one means.
#pragma once

#include <cuda_runtime_api.h>

namespace escrow {

// The device that is current on the calling thread. Throws cuda_error. Source: cudaGetDevice.
[[nodiscard]] int current_device();

// Whether this process has a context on `device` (the primary one), which asking does not make.
// True if CUDA does not tell. Any thread. Source: cuDevicePrimaryCtxGetState.
[[nodiscard]] bool is_in_use(int device) noexcept;

// Sets the calling thread's current device and puts the old one back at the end, on the same
// thread. Capture-safe. The constructor throws cuda_error and then has changed nothing.
class [[nodiscard]] device_scope {
 public:
  explicit device_scope(int device);
  device_scope(device_scope&&) = delete;
  ~device_scope();

 private:
  int previous_ = 0;
  bool changed_ = false;
};

// After a sticky fault. It is the process's: from then on every call returns it, whichever device
// it is about (the CUDA runtime: "leaves the process in an inconsistent state"). The device that
// failed runs nothing any more. Others go on with all that they were given, and CUDA does not tell
// when they are done; it destroys the user objects of their execs meanwhile. (Measured on two
// H200s, CUDA 13.0.)

// Whether `status`, of any call, means that no device runs anything of this process any more: it is
// sticky, and the process uses no other device. Capture-safe. Any thread.
[[nodiscard]] bool runs_nothing_after(cudaError_t status) noexcept;

// Asks CUDA whether the process has a sticky fault, and is true if another device may be at work
// all the same: what CUDA says is not in use any more may be. The current device is one that was
// used. Capture-safe. Any thread.
[[nodiscard]] bool may_work_go_on_untold() noexcept;

}  // namespace escrow
