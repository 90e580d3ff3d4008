// SPDX-License-Identifier: Apache-2.0
// Linked into an example that is run as a test on a GPU: skips it where there is none.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>

namespace {

constexpr int skip_status = 77;  // what CTest takes for "skipped"

[[maybe_unused]] bool const is_device_usable = [] {
  int devices = 0;
  cudaError_t const error = cudaGetDeviceCount(&devices);
  if (error == cudaSuccess && devices > 0) return true;
  std::printf("skipped: no usable GPU (%s)\n", cudaGetErrorName(error));
  static_cast<void>(std::fflush(stdout));
  std::_Exit(skip_status);
}();

}  // namespace
