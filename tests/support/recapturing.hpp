// Recaptures in tests: CUDA 13.3's function, which the simulated runtime has with all headers.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <escrow/sim/recapture.hpp>
#include <utility>

#include "status.hpp"

namespace escrow::test {

/// Captures into the graph again: `enqueue(stream)`. Returns how the capture ended.
template <class Enqueue>
[[nodiscard]] cudaError_t end_of_recapture(cudaStream_t stream, cudaGraph_t graph,
                                           Enqueue&& enqueue,
                                           cudaGraphRecaptureCallbackData* callback = nullptr) {
  must(cudaStreamBeginRecaptureToGraph(stream, cudaStreamCaptureModeRelaxed, graph, callback));
  std::forward<Enqueue>(enqueue)(stream);
  cudaGraph_t ended = nullptr;
  cudaError_t const status = cudaStreamEndCapture(stream, &ended);
  EXPECT_EQ(ended, status == cudaSuccess ? graph : nullptr);
  static_cast<void>(cudaGetLastError());
  return status;
}

}  // namespace escrow::test
