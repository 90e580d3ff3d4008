// SPDX-License-Identifier: Apache-2.0
// Retries for cleanup calls.
#pragma once

#include <cuda_runtime_api.h>

#include <concepts>

#include "escrow/core/error.hpp"

namespace escrow::inline v0_2 {

// As cudaThreadExchangeStreamCaptureMode, by the driver where it may be: see driver.cpp. The
// runtime has the driver's mode. Any thread.
cudaError_t exchange_capture_mode(cudaStreamCaptureMode& mode) noexcept;

// Makes a cleanup call (destroy, free, release, restore), with up to two retries: a failed call has
// released nothing, and would leak it. Not after a sticky fault, which every call reports whether
// it succeeded or not. Returns the last status. Any thread.
template <std::invocable Call>
cudaError_t retry_cleanup(Call call) noexcept {
  constexpr int attempts_max = 3;
  cudaError_t status = cudaSuccess;
  for (int attempt = 0; attempt < attempts_max; ++attempt) {
    status = call();
    if (succeeded(status) || is_sticky(status)) break;
  }
  return status;
}

// The same in Relaxed mode, for a call that would invalidate a capture in another mode. Any thread.
template <std::invocable Call>
cudaError_t retry_cleanup_relaxed(Call call) noexcept {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  auto const exchange = [&mode] { return exchange_capture_mode(mode); };
  cudaError_t const relaxed = retry_cleanup(exchange);
  cudaError_t const status = retry_cleanup(call);
  if (relaxed == cudaSuccess) retry_cleanup(exchange);
  return status;
}

}  // namespace escrow::inline v0_2
