// Calls that kill a capture, and when they do not.
#include <gtest/gtest.h>

#include <tuple>

#include "capture_calls.hpp"

namespace escrow::test {
namespace {

constexpr auto global = cudaStreamCaptureModeGlobal;
constexpr auto thread_local_mode = cudaStreamCaptureModeThreadLocal;
constexpr auto relaxed = cudaStreamCaptureModeRelaxed;

// Begins a capture with a node in it, makes the call, and expects the capture to be killed by it.
void expect_killed(capture_resources& all, cudaStreamCaptureMode mode, caller from,
                   cudaStreamCaptureMode own_mode, std::function<cudaError_t()> const& call,
                   cudaError_t expected) {
  capture open{all.capturing, mode};
  must(launch_tiny(all.capturing));
  ASSERT_TRUE(open.is_active());
  EXPECT_EQ(status_on(from, own_mode, call), expected);
  EXPECT_EQ(open.info().status, cudaStreamCaptureStatusInvalidated);
  EXPECT_EQ(open.end(), cudaErrorStreamCaptureInvalidated);
  EXPECT_EQ(open.graph().get(), nullptr);
}

// The same, but the capture lives and the call succeeds.
void expect_harmless(capture_resources& all, cudaStreamCaptureMode mode, caller from,
                     cudaStreamCaptureMode own_mode, std::function<cudaError_t()> const& call) {
  capture open{all.capturing, mode};
  must(launch_tiny(all.capturing));
  EXPECT_EQ(status_on(from, own_mode, call), cudaSuccess);
  EXPECT_TRUE(open.is_active());
  must(launch_tiny(all.capturing));
  EXPECT_EQ(open.end(), cudaSuccess);
  ASSERT_NE(open.graph().get(), nullptr);
  EXPECT_EQ(node_count(open.graph()), 2U);
}

struct situation {
  char const* name;
  cudaStreamCaptureMode mode;
  caller from;
  cudaStreamCaptureMode own_mode;
};

void PrintTo(situation const& where, std::ostream* out) {
  *out << where.name;
}

using situation_and_call = std::tuple<situation, capture_call>;

std::string name_of_case(testing::TestParamInfo<situation_and_call> const& info) {
  return std::string{std::get<1>(info.param).name} + std::get<0>(info.param).name;
}

class UnsafeCall : public testing::TestWithParam<situation_and_call> {};

using UnsafeCallThatKills = UnsafeCall;

TEST_P(UnsafeCallThatKills, IsUnsupportedAndInvalidatesTheCapture) {
  auto const& [where, what] = GetParam();
  capture_resources all;
  expect_killed(
      all, where.mode, where.from, where.own_mode, [&, make = what.make] { return make(all); },
      cudaErrorStreamCaptureUnsupported);
}

INSTANTIATE_TEST_SUITE_P(
    Capture, UnsafeCallThatKills,
    testing::Combine(testing::Values(situation{"FromTheCapturingThreadOfAGlobalCapture", global,
                                               caller::capturing_thread, global},
                                     situation{"FromTheCapturingThreadOfAThreadLocalCapture",
                                               thread_local_mode, caller::capturing_thread, global},
                                     situation{"FromAnotherThreadDuringAGlobalCapture", global,
                                               caller::other_thread, global}),
                     testing::ValuesIn(unsafe_calls)),
    name_of_case);

using UnsafeCallThatIsHarmless = UnsafeCall;

TEST_P(UnsafeCallThatIsHarmless, SucceedsAndTheCaptureLives) {
  auto const& [where, what] = GetParam();
  capture_resources all;
  expect_harmless(all, where.mode, where.from, where.own_mode,
                  [&, make = what.make] { return make(all); });
}

INSTANTIATE_TEST_SUITE_P(
    Capture, UnsafeCallThatIsHarmless,
    testing::Combine(
        testing::Values(
            situation{"FromARelaxedCapturingThreadOfAGlobalCapture", global,
                      caller::capturing_thread, relaxed},
            situation{"FromARelaxedCapturingThreadOfAThreadLocalCapture", thread_local_mode,
                      caller::capturing_thread, relaxed},
            situation{"FromARelaxedCapturingThreadOfARelaxedCapture", relaxed,
                      caller::capturing_thread, relaxed},
            situation{"FromAnotherRelaxedThreadDuringAGlobalCapture", global, caller::other_thread,
                      relaxed},
            situation{"FromAnotherRelaxedThreadDuringAThreadLocalCapture", thread_local_mode,
                      caller::other_thread, relaxed},
            situation{"FromAnotherRelaxedThreadDuringARelaxedCapture", relaxed,
                      caller::other_thread, relaxed},
            situation{"FromTheCapturingThreadOfARelaxedCapture", relaxed, caller::capturing_thread,
                      global},
            // CUDA's documentation: a thread in ThreadLocal mode ignores the captures of others.
            situation{"FromAnotherThreadLocalThreadDuringAGlobalCapture", global,
                      caller::other_thread, thread_local_mode},
            situation{"FromAnotherThreadDuringAThreadLocalCapture", thread_local_mode,
                      caller::other_thread, global},
            situation{"FromAnotherThreadDuringARelaxedCapture", relaxed, caller::other_thread,
                      global}),
        testing::ValuesIn(unsafe_calls)),
    name_of_case);

using mode_and_caller = std::tuple<cudaStreamCaptureMode, caller>;

class InEveryMode : public testing::TestWithParam<mode_and_caller> {
 protected:
  // Even on a relaxed thread.
  void expect_call_kills(std::function<cudaError_t()> const& call, cudaError_t expected) {
    auto const [mode, from] = GetParam();
    expect_killed(all, mode, from, relaxed, call, expected);
  }
  capture_resources all;
};

TEST_P(InEveryMode, DeviceSynchronizeKillsACapture) {
  expect_call_kills([] { return cudaDeviceSynchronize(); }, cudaErrorStreamCaptureUnsupported);
}

TEST_P(InEveryMode, AQueryOfTheCapturingStreamKillsItsCapture) {
  expect_call_kills([this] { return cudaStreamQuery(all.capturing); },
                    cudaErrorStreamCaptureUnsupported);
}

TEST_P(InEveryMode, AskingTheCapturingStreamForItsIdKillsItsCapture) {
  unsigned long long id = 0;
  expect_call_kills([this, &id] { return cudaStreamGetId(all.capturing, &id); },
                    cudaErrorStreamCaptureUnsupported);
}

TEST_P(InEveryMode, AskingTheCapturingStreamForItsDeviceKillsItsCapture) {
  int device = 0;
  expect_call_kills([this, &device] { return cudaStreamGetDevice(all.capturing, &device); },
                    cudaErrorStreamCaptureUnsupported);
}

TEST_P(InEveryMode, AskingTheCapturingStreamForItsFlagsKillsItsCapture) {
  unsigned int flags = 0;
  expect_call_kills([this, &flags] { return cudaStreamGetFlags(all.capturing, &flags); },
                    cudaErrorStreamCaptureUnsupported);
}

TEST_P(InEveryMode, AQueryOfAnEventRecordedInTheCaptureKillsIt) {
  expect_call_kills(
      [this] {
        must(cudaEventRecord(all.event, all.capturing));
        return cudaEventQuery(all.event);
      },
      cudaErrorCapturedEvent);
}

TEST_P(InEveryMode, AWaitOnAnEagerlyRecordedEventKillsTheCapture) {
  expect_call_kills([this] { return cudaStreamWaitEvent(all.capturing, all.event, 0); },
                    cudaErrorStreamCaptureIsolation);
}

TEST_P(InEveryMode, ALaunchOfAnExecIntoACapturingStreamIsUnsupported) {
  auto const [mode, from] = GetParam();
  capture open{all.capturing, mode};
  must(launch_tiny(all.capturing));
  EXPECT_EQ(status_on(from, relaxed, [this] { return cudaGraphLaunch(all.exec, all.capturing); }),
            cudaErrorStreamCaptureUnsupported);
}

INSTANTIATE_TEST_SUITE_P(Capture, InEveryMode,
                         testing::Combine(testing::ValuesIn(all_modes),
                                          testing::ValuesIn(all_callers)),
                         [](auto const& one) {
                           return name_of(std::get<0>(one.param)) + name_of(std::get<1>(one.param));
                         });

class BlockingStreamCapture : public testing::TestWithParam<cudaStreamCaptureMode> {
 protected:
  owned_stream stream = make_stream(cudaStreamDefault);
};

TEST_P(BlockingStreamCapture, SurvivesQuestionsAboutTheLegacyStreamWhichAreImplicit) {
  capture open{stream, GetParam()};
  must(launch_tiny(stream));
  cudaStreamCaptureStatus status{};
  EXPECT_EQ(cudaStreamIsCapturing(cudaStreamLegacy, &status), cudaErrorStreamCaptureImplicit);
  EXPECT_EQ(info_of(cudaStreamLegacy).error, cudaErrorStreamCaptureImplicit);
  EXPECT_TRUE(open.is_active());
  EXPECT_EQ(open.end(), cudaSuccess);
  EXPECT_NE(open.graph().get(), nullptr);
}

TEST_P(BlockingStreamCapture, IsKilledByAKernelOnTheLegacyStream) {
  capture open{stream, GetParam()};
  must(launch_tiny(stream));
  EXPECT_NE(launch_tiny(cudaStreamLegacy), cudaSuccess);
  EXPECT_EQ(open.end(), cudaErrorStreamCaptureInvalidated);
  EXPECT_EQ(open.graph().get(), nullptr);
}

INSTANTIATE_TEST_SUITE_P(Capture, BlockingStreamCapture, testing::ValuesIn(all_modes),
                         [](auto const& one) { return name_of(one.param); });

TEST(InvalidatedCapture, ShowsStatusTwoAndNoGraph) {
  owned_stream const stream = make_stream();
  capture open{stream, global};
  EXPECT_NE(open.info().graph, nullptr);
  EXPECT_NE(cudaStreamQuery(stream), cudaSuccess);
  capture_info const now = open.info();
  EXPECT_EQ(now.error, cudaSuccess);
  EXPECT_EQ(static_cast<int>(now.status), 2);
  EXPECT_EQ(now.graph, nullptr);
  cudaStreamCaptureStatus status{};
  EXPECT_EQ(cudaStreamIsCapturing(stream, &status), cudaSuccess);
  EXPECT_EQ(status, cudaStreamCaptureStatusInvalidated);
}

}  // namespace
}  // namespace escrow::test
