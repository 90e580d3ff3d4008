// Injected faults: calls that fail by number or by name, with no effect but the error.
#include <gtest/gtest.h>

#include <thread>

#include "fresh_runtime.hpp"
#include "handles.hpp"
#include "kernels.hpp"
#include "memory.hpp"

namespace escrow::test {
namespace {

using Injection = fresh_runtime;

TEST_F(Injection, TheNthCallFailsOnceWhateverItIs) {
  sim::fail_nth(2, cudaErrorMemoryAllocation);
  owned_stream const stream = make_stream();
  cudaEvent_t event = nullptr;
  EXPECT_EQ(cudaEventCreate(&event), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaEventCreate(&event), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
}

TEST_F(Injection, AFailedCallHasNoEffectButTheLastError) {
  cudaEvent_t event = nullptr;
  sim::fail_nth(1, cudaErrorUnknown);
  EXPECT_EQ(cudaEventCreate(&event), cudaErrorUnknown);
  EXPECT_EQ(event, nullptr);
  EXPECT_EQ(sim::alive(), sim::counts{});
  EXPECT_EQ(cudaPeekAtLastError(), cudaErrorUnknown);
  EXPECT_EQ(cudaGetLastError(), cudaErrorUnknown);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_F(Injection, AFailedDestroyLeavesTheObjectAlive) {
  owned_event const event = make_event();
  sim::fail_call("cudaEventDestroy", cudaErrorUnknown);
  EXPECT_EQ(cudaEventDestroy(event), cudaErrorUnknown);
  EXPECT_EQ(sim::alive().events, 1U);
}

TEST_F(Injection, AFailedCaptureEndLeavesTheCaptureOpen) {
  owned_stream const stream = make_stream();
  must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  sim::fail_call("cudaStreamEndCapture", cudaErrorUnknown);
  owned_graph graph;
  EXPECT_EQ(cudaStreamEndCapture(stream, graph.out()), cudaErrorUnknown);
  EXPECT_EQ(sim::alive().captures, 1U);
  EXPECT_EQ(cudaStreamEndCapture(stream, graph.out()), cudaSuccess);
}

TEST_F(Injection, ANamedCallFailsFromItsNthTimeOnAsOftenAsAsked) {
  owned_stream const stream = make_stream();
  owned_event const event = make_event();
  sim::fail_call("cudaEventRecord", cudaErrorLaunchFailure, 2, 2);
  EXPECT_EQ(cudaEventRecord(event, stream), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess);
  EXPECT_EQ(cudaEventRecord(event, stream), cudaErrorLaunchFailure);
  EXPECT_EQ(cudaEventRecord(event, stream), cudaErrorLaunchFailure);
  EXPECT_EQ(cudaEventRecord(event, stream), cudaSuccess);
}

TEST_F(Injection, ANamedCallOfThisThreadFailsWhateverOtherThreadsCall) {
  owned_stream const stream = make_stream();
  owned_event const event = make_event();
  sim::fail_call_here("cudaEventRecord", cudaErrorUnknown, 2);
  EXPECT_EQ(cudaEventRecord(event, stream), cudaSuccess);
  cudaError_t elsewhere = cudaErrorUnknown;
  std::jthread([&] { elsewhere = cudaEventRecord(event, stream); }).join();
  EXPECT_EQ(elsewhere, cudaSuccess);
  EXPECT_EQ(cudaEventRecord(event, stream), cudaErrorUnknown);
  EXPECT_EQ(cudaEventRecord(event, stream), cudaSuccess);
}

TEST_F(Injection, LastErrorAndErrorNamesNeverFailAndDoNotCount) {
  sim::fail_nth(1, cudaErrorUnknown);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  EXPECT_STREQ(cudaGetErrorName(cudaErrorUnknown), "cudaErrorUnknown");
  EXPECT_STREQ(cudaGetErrorString(cudaSuccess), "no error");
  int device = 0;
  EXPECT_EQ(cudaGetDevice(&device), cudaErrorUnknown);
}

TEST_F(Injection, AnErrorThatLosesTheDeviceAtTheNthCallLosesItAtThatVeryCall) {
  owned_stream const stream = make_stream();
  owned_event const event = make_event();
  pinned_ints flag;
  must(launch_wait_flag(stream, flag.data()));
  sim::fail_nth(2, cudaErrorIllegalAddress);
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(event), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaEventQuery(event), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorIllegalAddress) << "the work goes on";
  sim::run_until_idle();
}

TEST_F(Injection, ACallThatOutlivesALostDeviceDoesItsWorkWhenTheDeviceIsLostAtIt) {
  owned_graph graph = make_graph();
  sim::fail_nth(1, cudaErrorIllegalAddress);
  EXPECT_EQ(cudaGraphDestroy(graph.release()), cudaSuccess);
  EXPECT_EQ(sim::alive().graphs, 0U);
  void* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, 16), cudaErrorIllegalAddress);
}

TEST_F(Injection, AnErrorThatLosesADeviceLosesTheOneThatIsCurrentForTheCall) {
  must(cudaSetDevice(1));
  sim::fail_nth(1, cudaErrorLaunchFailure);
  void* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, 16), cudaErrorLaunchFailure);
  EXPECT_TRUE(sim::has_failed(1));
  EXPECT_FALSE(sim::has_failed(0));
}

TEST_F(Injection, ARecordingNamesTheCallsThatCanBeFailedInTheirOrder) {
  owned_event const event = make_event();
  sim::start_recording();
  static_cast<void>(cudaEventQuery(event));
  static_cast<void>(cudaGetLastError());  // cannot be failed
  int device = 0;
  std::thread([&] { static_cast<void>(cudaGetDevice(&device)); }).join();
  auto const calls = sim::stop_recording();
  static_cast<void>(cudaEventQuery(event));
  ASSERT_EQ(calls.size(), 2U);
  EXPECT_EQ(calls[0].api, "cudaEventQuery");
  EXPECT_EQ(calls[1].api, "cudaGetDevice");
  EXPECT_NE(calls[0].thread, calls[1].thread);
  EXPECT_TRUE(sim::stop_recording().empty());
}

TEST_F(Injection, TheNthCallOfARecordingIsTheOneThatFails) {
  owned_event const event = make_event();
  sim::start_recording();
  sim::fail_nth(2, cudaErrorUnknown);
  int device = 0;
  EXPECT_EQ(cudaGetDevice(&device), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(event), cudaErrorUnknown);
  EXPECT_EQ(sim::stop_recording()[1].api, "cudaEventQuery");
}

TEST_F(Injection, OfOneThreadTheNthCallIsFailedAndRecordedWhateverOthersDo) {
  auto const elsewhere = [] {
    std::thread([] {
      int device = 0;
      EXPECT_EQ(cudaGetDevice(&device), cudaSuccess);
    }).join();
  };
  owned_event const event = make_event();
  sim::start_recording(sim::recorded_threads::this_one);
  sim::fail_nth_here(2, cudaErrorUnknown);
  elsewhere();
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess);
  elsewhere();
  EXPECT_EQ(cudaEventQuery(event), cudaErrorUnknown);
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess);
  EXPECT_EQ(sim::stop_recording().size(), 3U);
}

TEST_F(Injection, ClearedFaultsDoNotHappen) {
  sim::fail_nth(1, cudaErrorUnknown);
  sim::fail_call("cudaGetDevice", cudaErrorUnknown);
  sim::clear_faults();
  int device = 0;
  EXPECT_EQ(cudaGetDevice(&device), cudaSuccess);
}

TEST_F(Injection, FailingEachCallInTurnReachesEveryCall) {
  auto const work = []() -> cudaError_t {
    cudaStream_t stream = nullptr;
    if (auto const error = cudaStreamCreate(&stream); error != cudaSuccess) return error;
    auto result = launch_tiny(stream);
    if (result == cudaSuccess) result = cudaStreamSynchronize(stream);
    // What a program does when its clean-up fails: it tries once more.
    while (cudaStreamDestroy(stream) != cudaSuccess) result = cudaErrorUnknown;
    return result;
  };
  std::uint64_t n = 1;
  for (; n < 100; ++n) {
    sim::fail_nth(n, cudaErrorUnknown);
    auto const result = work();
    sim::run_until_idle();
    EXPECT_EQ(sim::alive(), sim::counts{}) << "call " << n;
    if (result == cudaSuccess) break;
  }
  EXPECT_EQ(n, 5U);
}

}  // namespace
}  // namespace escrow::test
