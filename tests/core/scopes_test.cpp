// Scopes put back what they found, whichever way they are left.
#include <gtest/gtest.h>

#include <stdexcept>

#include "capturing.hpp"
#include "escrow/core/capture.hpp"
#include "escrow/core/error.hpp"
#include "escrow/detail/device.hpp"
#include "handles.hpp"

namespace escrow {
namespace {

int current_device() {
  int device = -1;
  test::must(cudaGetDevice(&device));
  return device;
}

cudaStreamCaptureMode current_mode() {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  test::must(cudaThreadExchangeStreamCaptureMode(&mode));
  cudaStreamCaptureMode const found = mode;
  test::must(cudaThreadExchangeStreamCaptureMode(&mode));
  return found;
}

class Devices : public testing::Test {
 protected:
  void SetUp() override {
    int devices = 0;
    test::must(cudaGetDeviceCount(&devices));
    if (devices < 2) GTEST_SKIP() << "needs two devices";
  }
};

TEST_F(Devices, AScopeSetsItsDeviceAndPutsTheOldOneBack) {
  {
    device_scope const outer(1);
    EXPECT_EQ(current_device(), 1);
    {
      device_scope const inner(0);
      EXPECT_EQ(current_device(), 0);
    }
    EXPECT_EQ(current_device(), 1);
  }
  EXPECT_EQ(current_device(), 0);
}

TEST_F(Devices, AScopePutsTheOldOneBackWhenUnwinding) {
  try {
    device_scope const scope(1);
    throw std::runtime_error("out");
  } catch (std::runtime_error const&) {
  }
  EXPECT_EQ(current_device(), 0);
}

TEST(DeviceScope, ThatCannotBeMadeHasChangedNothing) {
  EXPECT_THROW(static_cast<void>(device_scope(1000)), cuda_error);
  EXPECT_EQ(current_device(), 0);
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
}

TEST(RelaxedCaptureScope, PutsBackEachModeThatItMayFind) {
  for (cudaStreamCaptureMode const found :
       {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal,
        cudaStreamCaptureModeRelaxed}) {
    test::thread_mode_scope const set(found);
    {
      relaxed_capture_scope const outer;
      EXPECT_EQ(current_mode(), cudaStreamCaptureModeRelaxed);
      { relaxed_capture_scope const inner; }
      EXPECT_EQ(current_mode(), cudaStreamCaptureModeRelaxed);
    }
    EXPECT_EQ(current_mode(), found);
  }
}

TEST(RelaxedCaptureScope, PutsTheModeBackWhenUnwinding) {
  try {
    relaxed_capture_scope const scope;
    throw std::runtime_error("out");
  } catch (std::runtime_error const&) {
  }
  EXPECT_EQ(current_mode(), cudaStreamCaptureModeGlobal);
}

TEST(RelaxedCaptureScope, LetsAnAllocationLeaveACaptureOfThisThreadAlone) {
  test::owned_stream const stream = test::make_stream();
  test::capture capturing(stream, cudaStreamCaptureModeGlobal);
  {
    relaxed_capture_scope const relaxed;
    void* memory = nullptr;
    EXPECT_EQ(cudaMalloc(&memory, 64), cudaSuccess);
    EXPECT_EQ(cudaFree(memory), cudaSuccess);
  }
  EXPECT_EQ(capturing.end(), cudaSuccess);
}

}  // namespace
}  // namespace escrow
