// Retries for cleanup calls.
#pragma once

#include <cuda_runtime_api.h>

#include <concepts>

#include "escrow/core/error.hpp"

namespace escrow::inline v0_1 {

// Makes a cleanup call (destroy, free, release, restore), with up to two retries: a failed call has
// released nothing, and would leak it. Not after a sticky fault, which every call reports whether
// it succeeded or not. Returns whether the call succeeded. Any thread.
template <std::invocable Call>
bool retry_cleanup(Call call) noexcept {
  constexpr int attempts_max = 3;
  for (int attempt = 0; attempt < attempts_max; ++attempt) {
    cudaError_t const status = call();
    if (succeeded(status)) return true;
    if (is_sticky(status)) return false;
  }
  return false;
}

// The same in Relaxed mode, for a call that would invalidate a capture in another mode. Any thread.
template <std::invocable Call>
bool retry_cleanup_relaxed(Call call) noexcept {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  auto const exchange = [&mode] { return cudaThreadExchangeStreamCaptureMode(&mode); };
  bool const is_relaxed = retry_cleanup(exchange);
  bool const succeeded_at_last = retry_cleanup(call);
  if (is_relaxed) retry_cleanup(exchange);
  return succeeded_at_last;
}

}  // namespace escrow::inline v0_1
