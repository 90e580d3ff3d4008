// SPDX-License-Identifier: Apache-2.0
// The thread for calls that may fail while the caller has an error.
#include "escrow/internal/last_error.hpp"

#include <exception>
#include <thread>

namespace escrow::inline v0_2 {

cudaError_t call_on_another_thread(cudaError_t (*call)(void*), void* data) noexcept {
  int device = 0;
  cudaError_t status = cudaGetDevice(&device);
  if (status != cudaSuccess) return status;
  try {
    std::thread([&] {
      cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
      status = cudaThreadExchangeStreamCaptureMode(&mode);
      if (status == cudaSuccess) status = cudaSetDevice(device);
      if (status == cudaSuccess) status = call(data);
    }).join();
    return status;
  } catch (std::exception const&) {  // no thread: the error of the call counts more
    status = call(data);
    static_cast<void>(succeeded(status));
    return status;
  }
}

}  // namespace escrow::inline v0_2
