// Errors: what they name, and what they leave of CUDA's last error.
#include "escrow/core/error.hpp"

#include <gtest/gtest.h>

#include <string>

#include "escrow/core/event.hpp"
#include "kernels.hpp"
#include "status.hpp"

namespace escrow {
namespace {

TEST(CudaError, NamesTheCallTheStatusAndTheLine) {
  int const line = __LINE__ + 2;
  try {
    check(cudaErrorInvalidValue, "cudaSomeCall");
    FAIL() << "check() let a failure pass";
  } catch (cuda_error const& error) {
    std::string const text = error.what();
    EXPECT_EQ(error.status(), cudaErrorInvalidValue);
    EXPECT_STREQ(error.api(), "cudaSomeCall");
    EXPECT_EQ(static_cast<int>(error.where().line()), line);
    EXPECT_NE(text.find("cudaSomeCall"), std::string::npos) << text;
    EXPECT_NE(text.find(cudaGetErrorName(cudaErrorInvalidValue)), std::string::npos) << text;
    EXPECT_NE(text.find(cudaGetErrorString(cudaErrorInvalidValue)), std::string::npos) << text;
    EXPECT_NE(text.find("cuda_error_test.cpp:" + std::to_string(line)), std::string::npos) << text;
  }
}

TEST(CudaError, IsNotThrownForSuccess) {
  EXPECT_NO_THROW(check(cudaSuccess, "cudaSomeCall"));
}

TEST(CudaError, LeavesNoLastErrorBehind) {
  ASSERT_NE(cudaSetDevice(-1), cudaSuccess);
  ASSERT_NE(cudaPeekAtLastError(), cudaSuccess);
  EXPECT_THROW(check(cudaErrorInvalidDevice, "cudaSetDevice"), cuda_error);
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
}

TEST(CudaError, AHandledFailureLeavesNoLastErrorBehind) {
  EXPECT_FALSE(succeeded(cudaSetDevice(-1)));
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  EXPECT_TRUE(succeeded(cudaSuccess));
}

TEST(CudaError, ComesFromTheWrappersWithTheNameOfTheCall) {
  int devices = 0;
  test::must(cudaGetDeviceCount(&devices));
  try {
    event_ref(cudaEvent_t{nullptr}).record(cudaStreamPerThread);
    FAIL() << "a null event was recorded";
  } catch (cuda_error const& error) {
    EXPECT_STREQ(error.api(), "cudaEventRecord");
    EXPECT_NE(error.status(), cudaSuccess);
  }
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
}

TEST(CudaError, KnowsWhichFailuresLoseTheDevice) {
  for (cudaError_t const lost :
       {cudaErrorIllegalAddress, cudaErrorLaunchFailure, cudaErrorAssert,
        cudaErrorIllegalInstruction, cudaErrorMisalignedAddress, cudaErrorLaunchTimeout,
        cudaErrorECCUncorrectable, cudaErrorMpsClientTerminated}) {
    EXPECT_TRUE(is_sticky(lost)) << cudaGetErrorName(lost);
  }
  for (cudaError_t const other :
       {cudaSuccess, cudaErrorNotReady, cudaErrorMemoryAllocation, cudaErrorInvalidValue,
        cudaErrorInvalidResourceHandle, cudaErrorStreamCaptureInvalidated, cudaErrorNotPermitted,
        cudaErrorCapturedEvent, cudaErrorUnknown}) {
    EXPECT_FALSE(is_sticky(other)) << cudaGetErrorName(other);
  }
}

TEST(UsageError, NamesTheCallTheProblemAndWhatToDo) {
  usage_error const error("some::call", "`x` is wrong", "make it right");
  std::string const text = error.what();
  for (char const* part : {"some::call", "`x` is wrong", "make it right"}) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace escrow
