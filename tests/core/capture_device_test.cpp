// The device of a capturing stream is found without a context on a device that is not used, and
// without a call where there is one device.
#include "escrow/detail/graph_query.hpp"

#include <gtest/gtest.h>

#include <escrow/sim.hpp>

#include "build_graph.hpp"
#include "capturing.hpp"
#include "escrow/core/capture.hpp"
#include "escrow/detail/device.hpp"
#include "escrow/detail/ready_event.hpp"
#include "handles.hpp"

namespace escrow {
namespace {

class CaptureDevice : public testing::Test {
 protected:
  ~CaptureDevice() override {
    // A reset makes the kept events invalid.
    for (int device = 0; device < sim::current_options().devices; ++device) {
      static_cast<void>(event_cache::take(device, event_use::captured));
    }
    sim::reset();
  }

  // A stream of `device`, which has a context from then on.
  static test::owned_stream stream_of(int device) {
    device_scope const there(device);
    return test::make_stream();
  }
};

TEST_F(CaptureDevice, IsFoundWithoutAContextOnAnUnusedDevice) {
  sim::reset({.devices = 5});
  {
    test::owned_stream stream = stream_of(3);
    test::owned_stream const other = stream_of(1);
    test::capture open{stream, cudaStreamCaptureModeGlobal};
    EXPECT_EQ(device_of_capturing(stream, capture_of(stream).id), 3);
    EXPECT_FALSE(is_captured_on(stream, 2));
    EXPECT_FALSE(is_captured_on(stream, 1));
    EXPECT_TRUE(is_captured_on(stream, 3));
    EXPECT_TRUE(open.is_active());
    EXPECT_EQ(open.end(), cudaSuccess);
    EXPECT_EQ(test::node_count(open.graph()), 0U);
  }
  EXPECT_FALSE(sim::has_context(2));
  EXPECT_FALSE(sim::has_context(4));
}

TEST_F(CaptureDevice, IsKnownWithoutARecordWhereThereIsOne) {
  sim::reset({.devices = 1});
  test::owned_stream const stream = test::make_stream();
  test::capture open{stream, cudaStreamCaptureModeGlobal};
  EXPECT_EQ(device_of_capturing(stream, capture_of(stream).id), 0);
  EXPECT_TRUE(is_captured_on(stream, 0));
  EXPECT_EQ(sim::calls("cudaEventCreateWithFlags"), 0U);
  EXPECT_EQ(sim::calls("cudaEventRecord"), 0U);
}

TEST_F(CaptureDevice, IsFoundWithEventsThatAreUsedAgain) {
  sim::reset({.devices = 2});
  test::owned_stream const first = stream_of(1);
  test::owned_stream const second = stream_of(1);
  test::capture one{first, cudaStreamCaptureModeGlobal};
  test::capture two{second, cudaStreamCaptureModeGlobal};
  EXPECT_EQ(device_of_capturing(first, capture_of(first).id), 1);
  auto const made = sim::calls("cudaEventCreateWithFlags");
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(device_of_capturing(first, capture_of(first).id), 1);
    EXPECT_EQ(device_of_capturing(second, capture_of(second).id), 1);
  }
  EXPECT_EQ(sim::calls("cudaEventCreateWithFlags"), made);
  EXPECT_EQ(one.end(), cudaSuccess);
  EXPECT_EQ(two.end(), cudaSuccess);
}

}  // namespace
}  // namespace escrow
