// Calls that a capture allows in every mode.
#include <gtest/gtest.h>

#include <tuple>

#include "capture_calls.hpp"

namespace escrow::test {
namespace {

void CUDART_CB do_nothing(void*) {}

cudaError_t make_and_release_user_object(capture_resources&) {
  witness seen;
  return cudaUserObjectRelease(seen.make(), 1);
}

cudaError_t retain_user_object(capture_resources& all) {
  witness seen;
  return cudaGraphRetainUserObject(info_of(all.capturing).graph, seen.make(), 1,
                                   cudaGraphUserObjectMove);
}

cudaError_t create_event(capture_resources&) {
  cudaEvent_t event = nullptr;
  cudaError_t const status = cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  return status != cudaSuccess ? status : cudaEventDestroy(event);
}

cudaError_t create_stream(capture_resources&) {
  cudaStream_t stream = nullptr;
  cudaError_t const status = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  return status != cudaSuccess ? status : cudaStreamDestroy(stream);
}

constexpr std::array legal_calls{
    capture_call{"EventCreate", &create_event},
    capture_call{"EventDestroy",
                 [](capture_resources& r) { return cudaEventDestroy(r.doomed_event.release()); }},
    capture_call{"EventRecordOnAnotherStream",
                 [](capture_resources& r) { return cudaEventRecord(r.event, r.other); }},
    capture_call{"StreamCreate", &create_stream},
    capture_call{"StreamDestroyOfAnotherStream",
                 [](capture_resources& r) { return cudaStreamDestroy(r.doomed_stream.release()); }},
    capture_call{"UserObjectCreate", &make_and_release_user_object},
    capture_call{"GraphRetainUserObject", &retain_user_object},
    capture_call{"StreamGetCaptureInfo",
                 [](capture_resources& r) { return info_of(r.capturing).error; }},
    capture_call{"ExternalWaitEvent",
                 [](capture_resources& r) {
                   return cudaStreamWaitEvent(r.capturing, r.event, cudaEventWaitExternal);
                 }},
    capture_call{"ExternalEventRecord",
                 [](capture_resources& r) {
                   return cudaEventRecordWithFlags(r.event, r.capturing, cudaEventRecordExternal);
                 }},
    capture_call{
        "LaunchHostFunc",
        [](capture_resources& r) { return cudaLaunchHostFunc(r.capturing, &do_nothing, nullptr); }},
};

using mode_and_call = std::tuple<cudaStreamCaptureMode, capture_call>;

class LegalCall : public testing::TestWithParam<mode_and_call> {};

TEST_P(LegalCall, SucceedsAndTheCaptureLivesAndItsGraphRuns) {
  auto const& [mode, call] = GetParam();
  capture_resources all;
  capture open{all.capturing, mode};
  must(launch_tiny(all.capturing));
  EXPECT_EQ(call.make(all), cudaSuccess);
  EXPECT_TRUE(open.is_active());
  must(launch_tiny(all.capturing));
  ASSERT_EQ(open.end(), cudaSuccess);
  ASSERT_NE(open.graph().get(), nullptr);
  owned_exec const exec = instantiate(open.graph());
  EXPECT_EQ(cudaGraphLaunch(exec, all.other), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(all.other), cudaSuccess);
}

INSTANTIATE_TEST_SUITE_P(Capture, LegalCall,
                         testing::Combine(testing::ValuesIn(all_modes),
                                          testing::ValuesIn(legal_calls)),
                         [](auto const& one) {
                           return std::string{std::get<1>(one.param).name} + "In" +
                                  name_of(std::get<0>(one.param)) + "Mode";
                         });

TEST(CaptureGraph, HasNoNodesOrExtraEdgesForRecordsAndWaitsOnOneStream) {
  owned_stream const stream = make_stream();
  owned_event const event = make_event();
  capture open{stream, cudaStreamCaptureModeGlobal};
  must(launch_tiny(stream));
  for (int i = 0; i < 3; ++i) {
    must(cudaEventRecord(event, stream));
    must(cudaStreamWaitEvent(stream, event, 0));
    must(launch_tiny(stream));
  }
  ASSERT_EQ(open.end(), cudaSuccess);
  EXPECT_EQ(node_count(open.graph()), 4U);
  EXPECT_EQ(edge_count(open.graph()), 3U);
}

// An event that was last recorded in a capture, which has ended.
class EventOfAnEndedCapture : public testing::Test {
 protected:
  EventOfAnEndedCapture() {
    capture open{stream, cudaStreamCaptureModeGlobal};
    must(launch_tiny(stream));
    must(cudaEventRecord(event, stream));
    must(open.end());
    graph = std::move(open.graph());
  }

  owned_stream stream = make_stream();
  owned_stream other = make_stream();
  owned_event event = make_event();
  owned_graph graph;
};

TEST_F(EventOfAnEndedCapture, CannotBeWaitedForOrQueriedWhileItsGraphLives) {
  EXPECT_EQ(cudaStreamWaitEvent(other, event, 0), cudaErrorInvalidValue);
  EXPECT_EQ(cudaEventQuery(event), cudaErrorInvalidValue);
  static_cast<void>(cudaGetLastError());
}

TEST_F(EventOfAnEndedCapture, CannotBeWaitedForOrQueriedWhenItsGraphIsGone) {
  graph.reset();
  EXPECT_EQ(cudaStreamWaitEvent(other, event, 0), cudaErrorInvalidValue);
  EXPECT_EQ(cudaEventQuery(event), cudaErrorInvalidValue);
  static_cast<void>(cudaGetLastError());
}

TEST_F(EventOfAnEndedCapture, IsGoodAgainOnceItIsRecordedEagerly) {
  EXPECT_EQ(cudaEventRecord(event, other), cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(stream, event, 0), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess);
}

}  // namespace
}  // namespace escrow::test
