// SPDX-License-Identifier: Apache-2.0
// A stream that Escrow makes for itself.
#pragma once

#include <cuda_runtime_api.h>

#include "escrow/core/error.hpp"
#include "escrow/internal/retry_cleanup.hpp"

namespace escrow::inline v0_2 {

// Owns a non-blocking stream of the current device. Its work goes on after its end, as in CUDA.
// Capture-safe. The constructor throws cuda_error.
class own_stream {
 public:
  own_stream() {
    check(cudaStreamCreateWithFlags(&made_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  }
  own_stream(own_stream&&) = delete;
  ~own_stream() {
    retry_cleanup([this] { return cudaStreamDestroy(made_); });
  }

  [[nodiscard]] cudaStream_t get() const noexcept { return made_; }

 private:
  cudaStream_t made_ = nullptr;
};

}  // namespace escrow::inline v0_2
