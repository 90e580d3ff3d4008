// SPDX-License-Identifier: Apache-2.0
// For LD_PRELOAD with test-backend-ops: the CPU's reference takes one thread, since many programs
// run at once, and a GPU computes each graph LAB_TIMES times. With three, ggml-cuda runs it
// eagerly, captures it, and launches the capture once more. Says at the end how often it captured.
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>

#include "ggml-backend.h"
#include "ggml-cpu.h"

namespace {

struct counter {
  ~counter() { std::fprintf(stderr, "captures: %ld\n", value.load()); }
  std::atomic<long> value{0};
};
counter captures;

template <class Function>
Function* next_of(char const* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

ggml_backend_t ggml_backend_init_by_type(enum ggml_backend_dev_type type, char const* parameters) {
  static auto* const next =
      next_of<decltype(ggml_backend_init_by_type)>("ggml_backend_init_by_type");
  ggml_backend_t const made = next(type, parameters);
  if (type == GGML_BACKEND_DEVICE_TYPE_CPU) ggml_backend_cpu_set_n_threads(made, 1);
  return made;
}

ggml_status ggml_backend_graph_compute(ggml_backend_t backend, ggml_cgraph* graph) {
  static auto* const next =
      next_of<decltype(ggml_backend_graph_compute)>("ggml_backend_graph_compute");
  char const* const asked = std::getenv("LAB_TIMES");
  bool const is_cpu = ggml_backend_is_cpu(backend);
  int const times = asked == nullptr || is_cpu ? 1 : std::atoi(asked);
  ggml_status status = GGML_STATUS_SUCCESS;
  for (int i = 0; i < times && status == GGML_STATUS_SUCCESS; ++i) status = next(backend, graph);
  return status;
}

cudaError_t CUDARTAPI cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  static auto* const next = next_of<decltype(cudaStreamBeginCapture)>("cudaStreamBeginCapture");
  ++captures.value;
  return next(stream, mode);
}
