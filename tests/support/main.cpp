// GoogleTest's main for every test: a child's case first, a skip where no GPU can be used, then the
// tests.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "child.hpp"
#include "kernels.hpp"

namespace {

constexpr int skip_status = 77;  // what CTest takes for "skipped"

bool is_device_usable() {
  int count = 0;
  cudaError_t const error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count > 0) {
    return true;
  }
  std::printf("skipped: no usable GPU (%s)\n", cudaGetErrorName(error));
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  // Loading a kernel at its first launch may wait for the device, where a test's other kernel waits
  // for the test. Set before anything touches CUDA; children inherit it.
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  int status = 0;
  if (escrow::test::run_as_child(argc, argv, status)) {
    return status;
  }
  testing::InitGoogleTest(&argc, argv);
  if (!escrow::test::is_simulated() && !is_device_usable()) {
    return skip_status;
  }
  return RUN_ALL_TESTS();
}
