// The current device, for a scope too, and which devices are in use.
#pragma once

namespace escrow {

// The device that is current on the calling thread. Throws cuda_error. Source: cudaGetDevice.
[[nodiscard]] int current_device();

// Whether this process has a context on `device` (the primary one), which asking does not make.
// True if CUDA does not tell. Any thread. Source: cuDevicePrimaryCtxGetState.
[[nodiscard]] bool is_in_use(int device) noexcept;

// What: sets the calling thread's current device and puts the old one back at the end.
// Thread safety: acts on the calling thread only; make and destroy it on the same thread.
// Memory ordering: none.
// Lifetime: scopes nest.
// Capture: capture-safe.
// Errors: the constructor throws cuda_error and then has changed nothing. Putting the old device
//   back cannot reasonably fail; its status is ignored.
class [[nodiscard]] device_scope {
 public:
  explicit device_scope(int device);
  device_scope(device_scope&&) = delete;
  ~device_scope();

 private:
  int previous_ = 0;
  bool changed_ = false;
};

}  // namespace escrow
