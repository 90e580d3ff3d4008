// For LD_PRELOAD: each graph that a test computes is computed three times. So ggml-cuda runs it
// eagerly, captures it, and launches the capture once more. Says at the end how often it captured.
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <atomic>
#include <cstdio>

#include "ggml-backend.h"

namespace {

struct counter {
  ~counter() { std::fprintf(stderr, "captures: %ld\n", value.load()); }
  std::atomic<long> value{0};
};
counter captures;

}  // namespace

ggml_status ggml_backend_graph_compute(ggml_backend_t backend, ggml_cgraph* graph) {
  static auto* const next = reinterpret_cast<decltype(ggml_backend_graph_compute)*>(
      dlsym(RTLD_NEXT, "ggml_backend_graph_compute"));
  ggml_status status = GGML_STATUS_SUCCESS;
  for (int i = 0; i < 3 && status == GGML_STATUS_SUCCESS; ++i) status = next(backend, graph);
  return status;
}

cudaError_t CUDARTAPI cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  static auto* const next = reinterpret_cast<decltype(cudaStreamBeginCapture)*>(
      dlsym(RTLD_NEXT, "cudaStreamBeginCapture"));
  ++captures.value;
  return next(stream, mode);
}
