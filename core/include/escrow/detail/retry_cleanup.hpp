// Calls that must not be left undone.
#pragma once

#include <cuda_runtime_api.h>

#include <concepts>

#include "escrow/core/error.hpp"

namespace escrow {

// Makes a call that gives something back (destroy, free, release, restore), and up to twice more if
// it fails: a call that failed has given nothing back, and it would leak. Not after a sticky
// fault, which every call reports whether it did its work or not. Says whether the call succeeded.
// Any thread.
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

// The same for a call that would kill a capture outside Relaxed mode; puts the thread there
// meanwhile. Any thread.
template <std::invocable Call>
bool retry_cleanup_relaxed(Call call) noexcept {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  auto const exchange = [&mode] { return cudaThreadExchangeStreamCaptureMode(&mode); };
  bool const is_relaxed = retry_cleanup(exchange);
  bool const succeeded_at_last = retry_cleanup(call);
  if (is_relaxed) retry_cleanup(exchange);
  return succeeded_at_last;
}

}  // namespace escrow
