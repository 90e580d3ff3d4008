// A device that is lost while another works on: what only looks lost, because the current device
// is, is not destroyed early, and goes when its own work is done.
#include <gtest/gtest.h>

#include <escrow/sim.hpp>
#include <optional>
#include <utility>

#include "escrow/deleter/deleter.hpp"
#include "handles.hpp"
#include "kernels.hpp"
#include "memory.hpp"
#include "probe.hpp"

namespace escrow {
namespace {

using test::make_fate;
using test::probe;

constexpr int healthy = 1;

void lose_device_0() {
  sim::fail_device(0, cudaErrorIllegalAddress);
}

// An owner whose move, in the middle of retire(), is the moment at which device 0 is lost.
class unlucky_owner {
 public:
  explicit unlucky_owner(test::fate_ptr it) : probe_(std::move(it)) {}
  unlucky_owner(unlucky_owner&& other) noexcept : probe_(std::move(other.probe_)) {
    lose_device_0();
  }
  unlucky_owner& operator=(unlucky_owner&&) = delete;
  ~unlucky_owner() = default;

 private:
  probe probe_;
};

// A kernel that waits runs on the healthy device; device 0 is the current one. Both ways of running
// a deleter: with its own worker, and polled by the caller.
class LostDevice : public testing::TestWithParam<bool> {
 protected:
  LostDevice() {
    test::must(cudaSetDevice(healthy));
    stream = test::make_stream();
    event = test::make_event();
    test::must(cudaSetDevice(0));
    deleter_.emplace(deleter_options{.own_worker = GetParam()});
    test::must(cudaSetDevice(healthy));
    test::must(test::launch_wait_flag(stream, flag.get()));
    test::must(cudaEventRecord(event, stream));
    test::must(cudaSetDevice(0));
  }
  ~LostDevice() override {
    flag.raise();
    deleter_.reset();
    sim::clear_faults();
    static_cast<void>(cudaSetDevice(0));
    static_cast<void>(cudaStreamSynchronize(stream));  // before the flag goes
    static_cast<void>(cudaGetLastError());
  }

  void expect_to_go_when_its_work_is_done(test::fate_ptr const& fate) {
    EXPECT_TRUE(test::stays_false([&] {
      poll();
      return fate->was_destroyed();
    })) << "destroyed while the kernel runs";
    flag.raise();
    EXPECT_TRUE(test::wait_until([&] {
      poll();
      return fate->was_destroyed();
    })) << "never destroyed";
    EXPECT_EQ(fate->times(), 1);
    EXPECT_EQ(deleter_->stats().held, 0U);
  }

  test::pinned_flag flag;
  test::owned_stream stream;
  test::owned_event event;
  std::optional<deleter> deleter_;

 private:
  void poll() {
    if (!GetParam()) deleter_->poll();
  }
};

INSTANTIATE_TEST_SUITE_P(Worker, LostDevice, testing::Values(true, false),
                         [](auto const& which) { return which.param ? "Own" : "Polled"; });

TEST_P(LostDevice, AnOwnerRetiredAfterAHealthyDevicesEventWaitsForIt) {
  auto const fate = make_fate();
  lose_device_0();
  deleter_->retire_after(event.get(), probe(fate));
  expect_to_go_when_its_work_is_done(fate);
}

TEST_P(LostDevice, AnOwnerThatWasRetiredBeforeWaitsForItsEventAllTheSame) {
  auto const fate = make_fate();
  deleter_->retire_after(event.get(), probe(fate));
  lose_device_0();
  expect_to_go_when_its_work_is_done(fate);
}

TEST_P(LostDevice, AnOwnerRetiredOnAHealthyStreamWaitsForItThoughTheCurrentDeviceIsLostMeanwhile) {
  auto const fate = make_fate();
  deleter_->retire(stream, unlucky_owner(fate));
  expect_to_go_when_its_work_is_done(fate);
}

TEST_P(LostDevice, AnOwnerOnAHealthyStreamIsKeptByTheCallerOrWaitsThoughTheCurrentDeviceIsLost) {
  auto const fate = make_fate();
  probe owner(fate);
  lose_device_0();
  EXPECT_THROW(deleter_->retire(stream, std::move(owner)), cuda_error);
  ASSERT_TRUE(owner.is_owner());  // NOLINT(bugprone-use-after-move): that is the question
  test::must(cudaSetDevice(healthy));
  static_cast<void>(cudaGetLastError());
  deleter_->retire(stream, std::move(owner));
  expect_to_go_when_its_work_is_done(fate);
  test::must(cudaSetDevice(healthy));
}

TEST_P(LostDevice, AnOwnerOfTheLostDeviceGoesAtOnceThoughAnotherDeviceIsCurrent) {
  test::owned_stream const lost = test::make_stream();
  test::owned_event const lost_event = test::make_event();
  test::pinned_flag never;
  test::must(test::launch_wait_flag(lost, never.get()));
  test::must(cudaEventRecord(lost_event, lost));
  auto const fate = make_fate();
  test::must(cudaSetDevice(healthy));
  deleter_->retire_after(lost_event.get(), probe(fate));
  lose_device_0();
  EXPECT_TRUE(deleter_->drain_for(test::generous));
  EXPECT_EQ(fate->times(), 1);
  flag.raise();  // the end of `never` waits for the current device, which is the healthy one
}

TEST_P(LostDevice, AnOwnerThatNoWorkUsesGoesAtOnce) {
  auto const fate = make_fate();
  lose_device_0();
  deleter_->retire(probe(fate));
  EXPECT_TRUE(deleter_->drain_for(test::generous));
  EXPECT_EQ(fate->times(), 1);
}

}  // namespace
}  // namespace escrow
