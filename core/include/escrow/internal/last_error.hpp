// SPDX-License-Identifier: Apache-2.0
// Calls that may fail in normal operation, and the caller's last error, which stays.
#pragma once

#include <cuda_runtime_api.h>

#include <concepts>
#include <memory>

#include "escrow/core/error.hpp"

namespace escrow::inline v0_2 {

// A failed call replaces the thread's last error, and nothing puts an earlier one back. So where a
// failure is no surprise, one asks first whether there is one, and then calls in another way: a
// function of the driver, which leaves the runtime's last error alone, or on another thread.

// Whether the calling thread has an error that a failed call would replace. Not a sticky fault,
// which stays. Capture-safe.
[[nodiscard]] inline bool is_error_pending() noexcept {
  cudaError_t const pending = cudaPeekAtLastError();
  return pending != cudaSuccess && !is_sticky(pending);
}

// Calls `call(data)` on another thread, with the same current device and in Relaxed capture mode;
// on this one if there cannot be another.
cudaError_t call_on_another_thread(cudaError_t (*call)(void*), void* data) noexcept;

// Returns what `call()` does, and leaves the last error as it was. For calls that any thread may
// make, in Relaxed capture mode. Any thread. Takes a thread if an error is pending.
template <std::invocable Call>
cudaError_t call_aside(Call call) noexcept {
  if (is_error_pending()) [[unlikely]] {
    return call_on_another_thread([](void* data) { return (*static_cast<Call*>(data))(); },
                                  std::addressof(call));
  }
  cudaError_t const status = call();
  static_cast<void>(succeeded(status));
  return status;
}

}  // namespace escrow::inline v0_2
