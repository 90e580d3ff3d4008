// What core does when CUDA fails: the second try of a ready event, scopes, the event cache.
#include <gtest/gtest.h>

#include <escrow/sim.hpp>
#include <vector>

#include "escrow/core/capture.hpp"
#include "escrow/core/error.hpp"
#include "escrow/detail/device.hpp"
#include "escrow/detail/ready_event.hpp"
#include "handles.hpp"
#include "kernels.hpp"
#include "memory.hpp"

namespace escrow {
namespace {

class CoreFault : public testing::Test {
 protected:
  void TearDown() override { sim::clear_faults(); }

  test::owned_stream stream_ = test::make_stream();
};

bool tracks_work(event const& ready, int device, cudaStream_t stream) {
  test::pinned_flag flag;
  device_scope const there(device);
  test::must(test::launch_wait_flag(stream, flag.get()));
  test::must(cudaEventRecord(ready.get(), stream));
  bool const before = ready.ref().is_done();
  flag.raise();
  ready.ref().sync();
  return !before && ready.ref().is_done();
}

TEST_F(CoreFault, AReadyEventIsRecordedAtOnce) {
  event ready;
  cudaEvent_t const handle = ready.get();
  int device = 0;
  record_result const result = record_ready(ready, device, stream_);
  EXPECT_EQ(result.outcome, record_outcome::recorded);
  EXPECT_EQ(result.status, cudaSuccess);
  EXPECT_EQ(ready.get(), handle);
}

TEST_F(CoreFault, ARefusedRecordIsTriedAgainWithAFreshEvent) {
  event ready;
  cudaEvent_t const suspect = ready.get();
  int device = 0;
  sim::fail_call("cudaEventRecord", cudaErrorInvalidValue);
  record_result const result = record_ready(ready, device, stream_);
  EXPECT_EQ(result.outcome, record_outcome::recorded_anew);
  EXPECT_EQ(result.status, cudaErrorInvalidValue);
  EXPECT_NE(ready.get(), suspect);
  EXPECT_EQ(device, 0);
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  EXPECT_TRUE(tracks_work(ready, 0, stream_));
}

TEST_F(CoreFault, ASuspectEventIsNotKept) {
  event ready;
  int device = 0;
  event_cache::put(0, event_cache::take(0));  // so that the second try makes none
  std::size_t const before = sim::alive().events;
  sim::fail_call("cudaEventRecord", cudaErrorInvalidValue);
  ASSERT_EQ(record_ready(ready, device, stream_).outcome, record_outcome::recorded_anew);
  EXPECT_EQ(sim::alive().events, before - 1);
}

TEST_F(CoreFault, AnEventOfAnotherDeviceIsReplacedByOneOfTheStreamsOwn) {
  event ready;
  int device = 0;
  test::owned_stream elsewhere;
  {
    device_scope const there(1);
    elsewhere = test::make_stream();
  }
  record_result const result = record_ready(ready, device, elsewhere);
  EXPECT_EQ(result.outcome, record_outcome::recorded_anew);
  EXPECT_EQ(result.status, cudaErrorInvalidResourceHandle);
  EXPECT_EQ(device, 1);
  EXPECT_TRUE(tracks_work(ready, 1, elsewhere));
  int current = -1;
  test::must(cudaGetDevice(&current));
  EXPECT_EQ(current, 0);
}

TEST_F(CoreFault, TwoRefusalsAreAFailureWithTheFirstStatus) {
  event ready;
  cudaEvent_t const handle = ready.get();
  int device = 0;
  sim::fail_call("cudaEventRecord", cudaErrorInvalidValue, 1, 1);
  sim::fail_call("cudaEventRecord", cudaErrorMemoryAllocation, 2, 1);
  record_result const result = record_ready(ready, device, stream_);
  EXPECT_EQ(result.outcome, record_outcome::failed);
  EXPECT_EQ(result.status, cudaErrorInvalidValue);
  EXPECT_EQ(ready.get(), handle);
  EXPECT_EQ(device, 0);
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
}

TEST_F(CoreFault, NoFreshEventIsAFailureToo) {
  for (char const* call : {"cudaStreamGetDevice", "cudaEventCreateWithFlags", "cudaGetDevice"}) {
    SCOPED_TRACE(call);
    event ready;
    int device = 0;
    std::vector<event> kept;  // empties the cache, so that an event has to be made
    std::size_t const made = sim::calls("cudaEventCreateWithFlags");
    while (sim::calls("cudaEventCreateWithFlags") == made) kept.push_back(event_cache::take(0));
    sim::fail_call("cudaEventRecord", cudaErrorInvalidValue);
    sim::fail_call(call, cudaErrorMemoryAllocation);
    record_result const result = record_ready(ready, device, stream_);
    EXPECT_EQ(result.outcome, record_outcome::failed);
    EXPECT_EQ(result.status, cudaErrorInvalidValue);
    EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
    sim::clear_faults();
  }
}

TEST_F(CoreFault, AScopeThatCannotBeMadeHasChangedNothing) {
  for (char const* call : {"cudaGetDevice", "cudaSetDevice"}) {
    sim::fail_call(call, cudaErrorUnknown);
    EXPECT_THROW(static_cast<void>(device_scope(1)), cuda_error) << call;
    int current = -1;
    test::must(cudaGetDevice(&current));
    EXPECT_EQ(current, 0);
  }
  sim::fail_call("cudaThreadExchangeStreamCaptureMode", cudaErrorUnknown);
  EXPECT_THROW(static_cast<void>(relaxed_capture_scope()), cuda_error);
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  test::must(cudaThreadExchangeStreamCaptureMode(&mode));
  EXPECT_EQ(mode, cudaStreamCaptureModeGlobal);
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
}

TEST_F(CoreFault, TheEventCacheThrowsWhenAnEventCannotBeMadeAndLeaksNone) {
  std::vector<event> kept;
  std::size_t const made = sim::calls("cudaEventCreateWithFlags");
  while (sim::calls("cudaEventCreateWithFlags") == made) kept.push_back(event_cache::take(1));
  std::size_t const before = sim::alive().events;
  for (char const* call : {"cudaGetDevice", "cudaSetDevice", "cudaEventCreateWithFlags"}) {
    sim::fail_call(call, cudaErrorMemoryAllocation);
    EXPECT_THROW(static_cast<void>(event_cache::take(1)), cuda_error) << call;
  }
  EXPECT_EQ(sim::alive().events, before);
  int current = -1;
  test::must(cudaGetDevice(&current));
  EXPECT_EQ(current, 0);
  EXPECT_TRUE(event_cache::take(1));
}

}  // namespace
}  // namespace escrow
