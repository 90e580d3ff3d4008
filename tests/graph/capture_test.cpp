// Capturing as a function call: the graph comes back, or nothing is left.
#include "escrow/graph/graph.hpp"

#include <gtest/gtest.h>

#include <stdexcept>

#include "build_graph.hpp"
#include "escrow/core/capture.hpp"
#include "escrow/core/error.hpp"
#include "escrow/deleter/deleter.hpp"
#include "escrow/graph/graph_exec.hpp"
#include "handles.hpp"
#include "kernels.hpp"
#include "memory.hpp"
#include "owner.hpp"

namespace escrow {
namespace {

class Capture : public testing::TestWithParam<cudaStreamCaptureMode> {
 protected:
  test::pinned_ints cell_;
  test::owned_stream stream_ = test::make_stream();
};

INSTANTIATE_TEST_SUITE_P(Modes, Capture,
                         testing::Values(cudaStreamCaptureModeGlobal,
                                         cudaStreamCaptureModeThreadLocal,
                                         cudaStreamCaptureModeRelaxed));

TEST_P(Capture, ReturnsTheGraphOfWhatWasEnqueuedAndRunsNothing) {
  graph const captured = capture(
      stream_,
      [this](stream_ref stream) {
        EXPECT_EQ(stream.get(), stream_.get());
        EXPECT_TRUE(capture_of(stream).is_active());
        test::must(test::launch_add(stream.get(), cell_.data(), 1));
        test::must(test::launch_add(stream.get(), cell_.data(), 10));
      },
      GetParam());
  EXPECT_TRUE(capture_of(stream_).is_none());
  EXPECT_EQ(test::node_count(captured.get()), 2U);
  test::must(cudaStreamSynchronize(stream_));
  EXPECT_EQ(cell_.load(), 0);
  graph_exec(captured).launch(stream_);
  test::must(cudaStreamSynchronize(stream_));
  EXPECT_EQ(cell_.load(), 11);
}

TEST_P(Capture, OfNothingIsAnEmptyGraph) {
  graph const captured = capture(
      stream_, [](stream_ref) {}, GetParam());
  EXPECT_EQ(test::node_count(captured.get()), 0U);
}

TEST_P(Capture, TakesACallableThatCanOnlyBeCalledOnceAndByRvalue) {
  struct once {
    void operator()(stream_ref stream) && { test::must(test::launch_tiny(stream.get())); }
  };
  EXPECT_EQ(test::node_count(capture(stream_, once{}, GetParam()).get()), 1U);
}

TEST_P(Capture, ThatThrowsIsEndedAndDropped) {
  test::watched_owner watched;
  deleter its;
  auto const enqueue = [&](stream_ref stream) {
    test::must(test::launch_tiny(stream.get()));
    its.retire(stream, watched.owner());
    throw std::runtime_error("out");
  };
  EXPECT_THROW(static_cast<void>(capture(stream_, enqueue, GetParam())), std::runtime_error);
  EXPECT_TRUE(capture_of(stream_).is_none());
  EXPECT_TRUE(watched.wait()) << "what was captured was not dropped";
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  EXPECT_EQ(test::launch_add(stream_, cell_.data(), 1), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  EXPECT_EQ(cell_.load(), 1);
}

TEST_P(Capture, ThatWasInvalidatedIsAnErrorAndTheStreamIsFreeAgain) {
  test::watched_owner watched;
  deleter its;
  try {
    static_cast<void>(capture(
        stream_,
        [&](stream_ref stream) {
          its.retire(stream, watched.owner());
          static_cast<void>(cudaDeviceSynchronize());
        },
        GetParam()));
    FAIL() << "an invalidated capture gave a graph";
  } catch (cuda_error const& error) {
    EXPECT_EQ(error.status(), cudaErrorStreamCaptureInvalidated);
    EXPECT_STREQ(error.api(), "cudaStreamEndCapture");
  }
  EXPECT_TRUE(watched.wait());
  EXPECT_TRUE(capture_of(stream_).is_none());
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  EXPECT_NO_THROW(static_cast<void>(capture(
      stream_, [](stream_ref) {}, GetParam())));
}

TEST_P(Capture, WithAForkThatWasNotJoinedIsAnErrorAndBothStreamsAreFreeAgain) {
  test::owned_stream const branch = test::make_stream();
  test::owned_event const forked = test::make_event();
  EXPECT_THROW(static_cast<void>(capture(
                   stream_,
                   [&](stream_ref stream) {
                     test::must(cudaEventRecord(forked, stream.get()));
                     test::must(cudaStreamWaitEvent(branch, forked, 0));
                     test::must(test::launch_tiny(branch));
                   },
                   GetParam())),
               cuda_error);
  EXPECT_TRUE(capture_of(stream_).is_none());
  EXPECT_TRUE(capture_of(branch).is_none());
}

TEST_P(Capture, OfAStreamThatCapturesAlreadyIsAnErrorAndHarmsNothing) {
  graph const outer = capture(
      stream_,
      [](stream_ref stream) {
        test::must(test::launch_tiny(stream.get()));
        EXPECT_THROW(static_cast<void>(capture(stream, [](stream_ref) {})), cuda_error);
      },
      GetParam());
  EXPECT_EQ(test::node_count(outer.get()), 1U);
}

TEST_P(Capture, AScopeThatIsNotEndedDropsWhatItHas) {
  test::watched_owner watched;
  deleter its;
  {
    capture_scope const scope(stream_, GetParam());
    its.retire(stream_, watched.owner());
  }
  EXPECT_TRUE(watched.wait());
  EXPECT_TRUE(capture_of(stream_).is_none());
}

TEST_P(Capture, TwoStreamsMayBeCapturedInsideEachOther) {
  test::owned_stream const other = test::make_stream();
  graph inner = graph(cudaGraph_t{});
  graph const outer = capture(
      stream_,
      [&](stream_ref stream) {
        test::must(test::launch_tiny(stream.get()));
        inner = capture(
            other, [](stream_ref its) { test::must(test::launch_tiny(its.get())); }, GetParam());
        test::must(test::launch_tiny(stream.get()));
      },
      GetParam());
  EXPECT_EQ(test::node_count(outer.get()), 2U);
  EXPECT_EQ(test::node_count(inner.get()), 1U);
}

TEST(CaptureOfTheLegacyStream, IsAnError) {
  EXPECT_THROW(static_cast<void>(capture(cudaStreamLegacy, [](stream_ref) {})), cuda_error);
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
}

}  // namespace
}  // namespace escrow
