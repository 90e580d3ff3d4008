// Injected faults: calls that fail by number or by name, with no effect but the error; and
// recordings of the calls that can be failed.
#include <gtest/gtest.h>

#include <thread>

#include "fresh_runtime.hpp"
#include "handles.hpp"
#include "kernels.hpp"
#include "memory.hpp"

namespace escrow::test {
namespace {

class Injection : public fresh_runtime {
 protected:
  static cudaError_t get_device() {
    int device = 0;
    return cudaGetDevice(&device);
  }
  // The status of a call on another thread.
  template <class Call>
  static cudaError_t elsewhere(Call call) {
    cudaError_t result = cudaErrorUnknown;
    std::jthread([&] { result = call(); }).join();
    return result;
  }

  owned_event event = make_event();
};

TEST_F(Injection, TheNthCallFailsOnceAndHasNoEffectButTheLastError) {
  sim::fail_nth(2, cudaErrorUnknown);
  owned_stream const stream = make_stream();
  auto const before = sim::alive();
  cudaEvent_t made = nullptr;
  EXPECT_EQ(cudaEventCreate(&made), cudaErrorUnknown);
  EXPECT_EQ(made, nullptr);
  EXPECT_EQ(sim::alive(), before);
  EXPECT_EQ(cudaPeekAtLastError(), cudaErrorUnknown);
  EXPECT_EQ(cudaGetLastError(), cudaErrorUnknown);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_EQ(cudaEventCreate(&made), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(made), cudaSuccess);
}

TEST_F(Injection, AFailedEndOfAnObjectOrOfACaptureLeavesItAsItWas) {
  owned_stream const stream = make_stream();
  must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  sim::fail_call("cudaStreamEndCapture", cudaErrorUnknown);
  sim::fail_call("cudaEventDestroy", cudaErrorUnknown);
  owned_graph graph;
  EXPECT_EQ(cudaStreamEndCapture(stream, graph.out()), cudaErrorUnknown);
  EXPECT_EQ(sim::alive().captures, 1U);
  EXPECT_EQ(cudaStreamEndCapture(stream, graph.out()), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(event), cudaErrorUnknown);
  EXPECT_EQ(sim::alive().events, 1U);
}

TEST_F(Injection, ANamedCallFailsFromItsNthTimeOnAsOftenAsAskedAndOnThisThreadIfAsked) {
  sim::fail_call("cudaEventRecord", cudaErrorLaunchFailure, 2, 2);
  auto const record = [this] { return cudaEventRecord(event, nullptr); };
  EXPECT_EQ(record(), cudaSuccess);
  EXPECT_EQ(get_device(), cudaSuccess);
  EXPECT_EQ(record(), cudaErrorLaunchFailure);
  EXPECT_EQ(record(), cudaErrorLaunchFailure);
  EXPECT_EQ(record(), cudaSuccess);
  sim::fail_call_here("cudaEventRecord", cudaErrorUnknown, 2);
  EXPECT_EQ(record(), cudaSuccess);
  EXPECT_EQ(elsewhere(record), cudaSuccess);
  EXPECT_EQ(record(), cudaErrorUnknown);
  EXPECT_EQ(record(), cudaSuccess);
}

TEST_F(Injection, ClearedFaultsDoNotHappenAndLastErrorAndNamesNeverFailAndDoNotCount) {
  sim::fail_nth(1, cudaErrorUnknown);
  sim::fail_call("cudaGetDevice", cudaErrorUnknown);
  sim::clear_faults();
  EXPECT_EQ(get_device(), cudaSuccess);
  sim::fail_nth(1, cudaErrorUnknown);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  EXPECT_STREQ(cudaGetErrorName(cudaErrorUnknown), "cudaErrorUnknown");
  EXPECT_STREQ(cudaGetErrorString(cudaSuccess), "no error");
  EXPECT_EQ(get_device(), cudaErrorUnknown);
}

TEST_F(Injection, AnErrorThatLosesTheDeviceAtTheNthCallLosesItAtThatVeryCall) {
  owned_stream const stream = make_stream();
  pinned_ints flag;
  must(launch_wait_flag(stream, flag.data()));
  sim::fail_nth(2, cudaErrorIllegalAddress);
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(event), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaEventQuery(event), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorIllegalAddress) << "the work goes on";
  sim::run_until_idle();
}

TEST_F(Injection, AnErrorLosesTheDeviceThatIsCurrentThoughTheCallMayDoItsWork) {
  must(cudaSetDevice(1));
  owned_graph graph = make_graph();
  sim::fail_nth(1, cudaErrorIllegalAddress);
  EXPECT_EQ(cudaGraphDestroy(graph.release()), cudaSuccess) << "it outlives a lost device";
  EXPECT_EQ(sim::alive().graphs, 0U);
  EXPECT_TRUE(sim::has_failed(1));
  EXPECT_FALSE(sim::has_failed(0));
  void* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, 16), cudaErrorIllegalAddress);
}

TEST_F(Injection, ARecordingNamesTheCallsThatCanBeFailedOfAllThreadsInTheirOrder) {
  sim::start_recording();
  sim::fail_nth(2, cudaErrorUnknown);
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess);
  static_cast<void>(cudaGetLastError());  // cannot be failed
  EXPECT_EQ(elsewhere(&get_device), cudaErrorUnknown) << "the recording's second call";
  auto const calls = sim::stop_recording();
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess);
  ASSERT_EQ(calls.size(), 2U);
  EXPECT_EQ(calls[0].api, "cudaEventQuery");
  EXPECT_EQ(calls[1].api, "cudaGetDevice");
  EXPECT_NE(calls[0].thread, calls[1].thread);
  EXPECT_TRUE(sim::stop_recording().empty());
}

TEST_F(Injection, OfOneThreadTheNthCallIsFailedAndRecordedWhateverOthersDo) {
  sim::start_recording(sim::recorded_threads::this_one);
  sim::fail_nth_here(2, cudaErrorUnknown);
  EXPECT_EQ(elsewhere(&get_device), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess);
  EXPECT_EQ(elsewhere(&get_device), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(event), cudaErrorUnknown);
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess);
  EXPECT_EQ(sim::stop_recording().size(), 3U);
}

}  // namespace
}  // namespace escrow::test
