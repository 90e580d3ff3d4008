// The test's own calls of CUDA, which must harm no capture.
#pragma once

#include <cuda_runtime_api.h>

#include "status.hpp"

namespace escrow::test {

/// Relaxed capture mode of the calling thread, to its end.
class relaxed_scope {
 public:
  relaxed_scope() { must(cudaThreadExchangeStreamCaptureMode(&mode_)); }
  relaxed_scope(relaxed_scope&&) = delete;
  ~relaxed_scope() { static_cast<void>(cudaThreadExchangeStreamCaptureMode(&mode_)); }

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace escrow::test
