// What a stream says of its capture, in every state that it can be in.
#include "escrow/core/capture.hpp"

#include <gtest/gtest.h>

#include <string>

#include "capturing.hpp"
#include "escrow/core/error.hpp"
#include "handles.hpp"
#include "kernels.hpp"

namespace escrow {
namespace {

std::string text_of_refusal(cudaStream_t stream) {
  try {
    static_cast<void>(usable_capture_of("some::call", stream));
  } catch (usage_error const& error) {
    return error.what();
  }
  return "(not refused)";
}

// A forbidden call from the capturing thread.
void kill_capture() {
  void* memory = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, 64), cudaErrorStreamCaptureUnsupported);
  static_cast<void>(cudaGetLastError());
}

TEST(CaptureOf, APlainStreamIsNone) {
  test::owned_stream const stream = test::make_stream();
  for (cudaStream_t const each : {stream.get(), cudaStream_t{}, cudaStreamPerThread}) {
    escrow::capture_info const found = capture_of(each);
    EXPECT_TRUE(found.is_none());
    EXPECT_FALSE(found.is_active());
    EXPECT_EQ(found.id, 0U);
    EXPECT_EQ(found.graph, nullptr);
    EXPECT_TRUE(usable_capture_of("some::call", each).is_none());
  }
}

TEST(CaptureOf, ACapturingStreamNamesItsGraph) {
  test::owned_stream const stream = test::make_stream();
  test::capture capturing(stream, cudaStreamCaptureModeGlobal);
  escrow::capture_info const found = capture_of(stream);
  escrow::capture_info const usable = usable_capture_of("some::call", stream);
  EXPECT_TRUE(found.is_active());
  EXPECT_EQ(found.id, capturing.info().id);
  EXPECT_EQ(usable.id, found.id);
  ASSERT_EQ(capturing.end(), cudaSuccess);
  EXPECT_EQ(found.graph, capturing.graph().get());
  EXPECT_TRUE(capture_of(stream).is_none());
}

TEST(CaptureOf, AForkNamesTheGraphOfItsOrigin) {
  test::owned_stream const origin = test::make_stream();
  test::owned_stream const branch = test::make_stream();
  test::owned_event const forked = test::make_event();
  test::owned_event const joined = test::make_event();
  test::capture capturing(origin, cudaStreamCaptureModeGlobal);
  test::must(cudaEventRecord(forked, origin));
  test::must(cudaStreamWaitEvent(branch, forked, 0));
  test::must(test::launch_tiny(branch));
  EXPECT_EQ(capture_of(branch).id, capture_of(origin).id);
  EXPECT_EQ(capture_of(branch).graph, capture_of(origin).graph);
  test::must(cudaEventRecord(joined, branch));
  test::must(cudaStreamWaitEvent(origin, joined, 0));
  EXPECT_EQ(capturing.end(), cudaSuccess);
}

TEST(CaptureOf, AnInvalidatedCaptureHasNeitherIdNorGraph) {
  test::owned_stream const stream = test::make_stream();
  test::capture const capturing(stream, cudaStreamCaptureModeGlobal);
  kill_capture();
  escrow::capture_info const found = capture_of(stream);
  EXPECT_EQ(found.status, capture_status::invalidated);
  EXPECT_FALSE(found.is_none());
  EXPECT_FALSE(found.is_active());
  EXPECT_EQ(found.id, 0U);
  EXPECT_EQ(found.graph, nullptr);
}

TEST(UsableCaptureOf, AnInvalidatedCaptureIsRefusedByTheNameOfTheCall) {
  test::owned_stream const stream = test::make_stream();
  test::capture const capturing(stream, cudaStreamCaptureModeGlobal);
  kill_capture();
  std::string const text = text_of_refusal(stream);
  EXPECT_NE(text.find("some::call"), std::string::npos) << text;
  EXPECT_NE(text.find("invalidated"), std::string::npos) << text;
  EXPECT_NE(text.find("cudaStreamEndCapture"), std::string::npos) << text;
}

TEST(UsableCaptureOf, TheLegacyStreamIsRefusedWhileABlockingStreamCaptures) {
  test::owned_stream const blocking = test::make_stream(cudaStreamDefault);
  test::capture capturing(blocking, cudaStreamCaptureModeThreadLocal);
  try {
    static_cast<void>(capture_of(cudaStreamLegacy));
    FAIL() << "capture_of() answered";
  } catch (cuda_error const& error) {
    EXPECT_EQ(error.status(), cudaErrorStreamCaptureImplicit);
  }
  std::string const text = text_of_refusal(cudaStreamLegacy);
  EXPECT_NE(text.find("some::call"), std::string::npos) << text;
  EXPECT_NE(text.find("legacy"), std::string::npos) << text;
  EXPECT_EQ(text, text_of_refusal(cudaStream_t{}));
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  EXPECT_EQ(capturing.end(), cudaSuccess) << "asking harmed the capture";
}

TEST(UsableCaptureOf, AStreamThatDoesNotExistIsACudaError) {
  test::owned_stream stream = test::make_stream();
  test::owned_event const not_a_stream = test::make_event();
  EXPECT_NO_THROW(static_cast<void>(usable_capture_of("some::call", stream)));
  if (!test::is_simulated()) return;  // CUDA follows the handle wherever it points
  auto const wrong = reinterpret_cast<cudaStream_t>(not_a_stream.get());
  EXPECT_THROW(static_cast<void>(usable_capture_of("some::call", wrong)), cuda_error);
}

}  // namespace
}  // namespace escrow
