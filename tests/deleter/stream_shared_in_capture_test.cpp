// Objects that shared_ptrs share, used in captures, and by streams of two devices.
#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "build_graph.hpp"
#include "capturing.hpp"
#include "escrow/core/error.hpp"
#include "escrow/detail/device.hpp"
#include "stream_shared_fixture.hpp"

namespace escrow {
namespace {

using test::probe;
using test::stream_shared_test;

class StreamSharedInCapture : public stream_shared_test {
 protected:
  // A graph that uses the object, whose share ends with the capture.
  [[nodiscard]] test::owned_graph captured(std::shared_ptr<probe> shared) {
    test::capture open(stream_, cudaStreamCaptureModeGlobal);
    test::must(test::launch_tiny(stream_));
    record_stream(shared, stream_);
    shared.reset();
    test::must(open.end());
    return std::move(open.graph());
  }
};

TEST_F(StreamSharedInCapture, IsKeptByTheGraphItsCloneAndTheirExecs) {
  test::owned_graph graph = captured(share());
  test::owned_graph copy = test::clone(graph);
  test::owned_exec exec = test::instantiate(graph);
  graph.reset();
  EXPECT_TRUE(lives());
  exec.reset();
  EXPECT_TRUE(lives());
  test::owned_exec of_copy = test::instantiate(copy);
  copy.reset();
  EXPECT_TRUE(lives());
  of_copy.reset();
  EXPECT_TRUE(fate_->wait());
  EXPECT_EQ(fate_->times(), 1);
}

TEST_F(StreamSharedInCapture, AUseOnTheLegacyStreamThatCannotBeNotedBesideItIsNeverOver) {
  test::owned_stream const blocking = test::make_stream(cudaStreamDefault);
  auto shared = share();
  hold_up(cudaStreamLegacy);
  test::capture open(blocking, cudaStreamCaptureModeGlobal);
  EXPECT_THROW(record_stream(shared, cudaStreamLegacy), usage_error);
  EXPECT_TRUE(open.is_active());
  shared.reset();
  EXPECT_TRUE(stays()) << "destroyed while the kernel runs";
  EXPECT_EQ(open.end(), cudaSuccess);
  flag_.raise();
  test::must(cudaDeviceSynchronize());
  EXPECT_TRUE(deleter_.drain_for(test::generous));
  EXPECT_EQ(deleter_.stats().leaked, 1U);
  EXPECT_EQ(fate_->times(), 0);
}

TEST_F(StreamSharedInCapture, IsKeptByGraphsAndStreamsTogether) {
  auto shared = share();
  test::owned_graph first = captured(shared);
  test::owned_graph second = captured(shared);
  hold_up(other_);
  record_stream(shared, other_);
  shared.reset();
  first.reset();
  flag_.raise();
  EXPECT_TRUE(lives());
  second.reset();
  EXPECT_TRUE(fate_->wait());
}

TEST_F(StreamSharedInCapture, IsKeptByUsesThatAreNotedAfterItsDeleterWasStopped) {
  auto shared = share();
  deleter_.stop();
  hold_up(other_);
  record_stream(shared, other_);
  test::owned_graph graph = captured(std::move(shared));
  EXPECT_TRUE(stays());
  flag_.raise();
  EXPECT_TRUE(lives());
  graph.reset();
  EXPECT_TRUE(fate_->wait());
}

TEST_F(StreamSharedInCapture, IsFreeOnceTheCaptureWasAborted) {
  {
    test::capture open(stream_, cudaStreamCaptureModeThreadLocal);
    auto const shared = share();
    record_stream(shared, stream_);
    static_cast<void>(cudaStreamQuery(stream_));
    EXPECT_THROW(record_stream(shared, stream_), usage_error) << "the capture is invalidated";
  }
  EXPECT_TRUE(fate_->wait());
}

TEST_F(StreamSharedInCapture, NewUsesOfManyStreamsHarmNoCapture) {
  auto const shared = share();
  test::capture open(stream_, cudaStreamCaptureModeGlobal);
  for (int i = 0; i < 50; ++i) {
    test::owned_stream const passing = test::make_stream();
    record_stream(shared, passing);
  }
  EXPECT_TRUE(open.is_active());
  EXPECT_EQ(open.end(), cudaSuccess);
}

class StreamSharedOnTwoDevices : public stream_shared_test {
 protected:
  void SetUp() override {
    int devices = 0;
    test::must(cudaGetDeviceCount(&devices));
    if (devices < 2) GTEST_SKIP() << "needs two devices";
    device_scope const there(1);
    elsewhere_ = test::make_stream();
  }
  test::owned_stream elsewhere_;
};

TEST_F(StreamSharedOnTwoDevices, IsDestroyedOnItsOwnDeviceAfterTheWorkOfTheOther) {
  auto shared = share();
  {
    device_scope const there(1);
    hold_up(elsewhere_);
  }
  record_stream(shared, elsewhere_);
  record_stream(shared, stream_);
  shared.reset();
  EXPECT_TRUE(stays());
  flag_.raise();
  ASSERT_TRUE(fate_->wait());
  EXPECT_EQ(fate_->device, 0);
}

}  // namespace
}  // namespace escrow
