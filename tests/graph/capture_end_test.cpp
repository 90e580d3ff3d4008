// SPDX-License-Identifier: Apache-2.0
// Who ends a capture: a capture_scope once, end_capture() for a plain call, or a plain call.
#include <escrow/graph.hpp>
#include <escrow/nodes.hpp>
#include <memory>

#include "world.hpp"

namespace escrow::test {
namespace {

class CaptureEnd : public world {};

TEST_F(CaptureEnd, ACaptureEndsOnce) {
  capture_scope scope(one);
  static_cast<void>(scope.end());
  expect_error<usage_error>([&] { return scope.end(); }, {"capture_scope::end", "end it once"});
}

TEST_F(CaptureEnd, ACaptureThatAPlainCallBegan) {
  must(cudaStreamBeginCapture(one, cudaStreamCaptureModeThreadLocal));
  must(launch_tiny(one));
  graph made = end_capture(one);
  EXPECT_EQ(node_count(made.get()), 1U);
  EXPECT_NE(made.id(), 0U);
  expect_error<usage_error>([&] { return end_capture(one); },
                            {"end_capture", "not being captured", "begin a capture"});
  must(cudaStreamBeginCapture(one, cudaStreamCaptureModeThreadLocal));
  EXPECT_EQ(cudaStreamQuery(one), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(cudaGetLastError(), cudaErrorStreamCaptureUnsupported);
  expect_error<cuda_error>([&] { return end_capture(one); },
                           {"end_capture", "cudaErrorStreamCaptureInvalidated"});
  must(cudaStreamBeginCaptureToGraph(one, made.get(), nullptr, nullptr, 0,
                                     cudaStreamCaptureModeThreadLocal));
  expect_error<usage_error>([&] { return end_capture(one); }, {"has it already", "EndCapture"});
  cudaGraph_t same = nullptr;
  must(cudaStreamEndCapture(one, &same));
  EXPECT_EQ(same, made.get());
}

TEST_F(CaptureEnd, ACaptureIntoABodyMakesNoGraph) {
  graph made;
  body_graph const body = build(made).add(if_node(build(made).make_condition(1))).body();
  must(cudaStreamBeginCaptureToGraph(one, body.get(), nullptr, nullptr, 0,
                                     cudaStreamCaptureModeRelaxed));
  must(launch_tiny(one));
  expect_error<usage_error>([&] { return end_capture(one); },
                            {"end_capture", "goes into an escrow::graph, which has it already"});
  cudaGraph_t into = nullptr;
  must(cudaStreamEndCapture(one, &into));
  EXPECT_EQ(into, body.get());
  for (cudaGraph_t const taken : {made.get(), body.get()}) {
    expect_error<usage_error>(
        [&] { graph{taken}; },
        {"graph: `native` is the graph, or a body, of another escrow::graph"});
  }
  EXPECT_EQ(node_count(body.get()), 1U);
  cudaGraph_t const none = nullptr;  // as of an invalid capture
  expect_error<usage_error>([&] { graph{none}; },
                            {"graph: `native` is null", "cudaStreamEndCapture"});
}

// Another capture of the stream is not the scope's: it goes on.
TEST_F(CaptureEnd, ACaptureThatAnotherCallEnded) {
  auto const end_natively = [&] {
    cudaGraph_t made = nullptr;
    must(cudaStreamEndCapture(one, &made));
    must(cudaGraphDestroy(made));
  };
  for (bool const is_captured_again : {false, true}) {
    {
      capture_scope scope(one);
      auto dropped = std::make_unique<capture_scope>(stream_ref(two));
      end_natively();
      cudaGraph_t made = nullptr;
      must(cudaStreamEndCapture(two, &made));
      must(cudaGraphDestroy(made));
      if (is_captured_again) {
        must(cudaStreamBeginCapture(one, cudaStreamCaptureModeThreadLocal));
        must(cudaStreamBeginCapture(two, cudaStreamCaptureModeThreadLocal));
      }
      expect_error<usage_error>([&] { return scope.end(); },
                                {"capture_scope::end", "cudaStreamEndCapture(), ended"});
      dropped.reset();
    }
    for (cudaStream_t const each : {one.get(), two.get()}) {
      cudaStreamCaptureStatus status{};
      must(cudaStreamIsCapturing(each, &status));
      EXPECT_EQ(is_captured_again, status == cudaStreamCaptureStatusActive);
      if (!is_captured_again) continue;
      cudaGraph_t made = nullptr;
      must(cudaStreamEndCapture(each, &made));
      must(cudaGraphDestroy(made));
    }
  }
}

}  // namespace
}  // namespace escrow::test
