// What may cross from one device to another. Skips where there is one
// device.
#include <gtest/gtest.h>

#include "build_graph.hpp"
#include "handles.hpp"
#include "memory.hpp"

namespace escrow::test {
namespace {

// Things of device 0, and device 1 current.
class TwoDevices : public testing::Test {
 protected:
  void SetUp() override {
    int count = 0;
    must(cudaGetDeviceCount(&count));
    if (count < 2) {
      GTEST_SKIP() << "needs two devices";
    }
    must(cudaSetDevice(0));
    stream = make_stream();
    event = make_event();
    must(cudaEventRecord(event, stream));
    must(cudaStreamSynchronize(stream));
    exec = instantiate(tiny_graph());
    must(cudaSetDevice(1));
    stream_of_1 = make_stream();
    event_of_1 = make_event();
  }

  void TearDown() override {
    static_cast<void>(cudaGetLastError());
    static_cast<void>(cudaSetDevice(0));
  }

  owned_stream stream;
  owned_event event;
  owned_exec exec;
  owned_stream stream_of_1;
  owned_event event_of_1;
};

TEST_F(TwoDevices, RecordingAnEventOnAStreamOfAnotherDeviceIsAnInvalidHandle) {
  EXPECT_EQ(cudaEventRecord(event, stream_of_1), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaEventRecord(event_of_1, stream), cudaErrorInvalidResourceHandle);
}

TEST_F(TwoDevices, RecordingOnAStreamOfTheEventsOwnDeviceNeedsNoCurrentDevice) {
  EXPECT_EQ(cudaEventRecord(event, stream), cudaSuccess);
  EXPECT_EQ(cudaEventSynchronize(event), cudaSuccess);
}

TEST_F(TwoDevices, AStreamWaitsForAnEventOfAnotherDevice) {
  must(cudaSetDevice(0));
  pinned_ints order(2);
  pinned_flag flag;
  must(launch_wait_flag(stream, flag.get()));
  must(launch_add(stream, order.data(), 1));
  must(cudaEventRecord(event, stream));
  must(cudaSetDevice(1));
  EXPECT_EQ(cudaStreamWaitEvent(stream_of_1, event, 0), cudaSuccess);
  must(launch_copy(stream_of_1, order.data() + 1, order.data(), 1));
  EXPECT_EQ(cudaStreamQuery(stream_of_1), cudaErrorNotReady);
  flag.raise();
  EXPECT_EQ(cudaStreamSynchronize(stream_of_1), cudaSuccess);
  EXPECT_EQ(order.load(1), 1);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
}

TEST_F(TwoDevices, EventsAndStreamsOfAnotherDeviceCanBeQueried) {
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess);
  EXPECT_EQ(cudaEventSynchronize(event), cudaSuccess);
  EXPECT_EQ(cudaStreamQuery(stream), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
}

TEST_F(TwoDevices, AnExecOfAnotherDeviceCanBeLaunchedIntoItsStream) {
  EXPECT_EQ(cudaGraphLaunch(exec, stream), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
}

TEST_F(TwoDevices, MemoryOfAnotherDeviceCanBeFreed) {
  must(cudaSetDevice(0));
  void* memory = nullptr;
  void* pool_memory = nullptr;
  must(cudaMalloc(&memory, 64));
  must(cudaMallocAsync(&pool_memory, 64, stream));
  must(cudaStreamSynchronize(stream));
  must(cudaSetDevice(1));
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
  EXPECT_EQ(cudaFreeAsync(pool_memory, stream), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
}

TEST_F(TwoDevices, StreamsAndEventsOfAnotherDeviceCanBeDestroyed) {
  EXPECT_EQ(cudaEventDestroy(event.release()), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream.release()), cudaSuccess);
}

TEST_F(TwoDevices, HaveEachTheirOwnIdOfTheNullStream) {
  unsigned long long on_1 = 0;
  unsigned long long on_0 = 0;
  must(cudaStreamGetId(nullptr, &on_1));
  must(cudaSetDevice(0));
  must(cudaStreamGetId(nullptr, &on_0));
  EXPECT_NE(on_0, on_1);
}

}  // namespace
}  // namespace escrow::test
