// A device that is lost while another works on: nothing tells any more when that is done, so that
// what it may use is kept for ever, and what no work uses goes as always.
#include <gtest/gtest.h>

#include <escrow/sim.hpp>
#include <optional>
#include <utility>

#include "build_graph.hpp"
#include "escrow/deleter/deleter.hpp"
#include "escrow/detail/device.hpp"
#include "handles.hpp"
#include "kernels.hpp"
#include "memory.hpp"
#include "owners.hpp"

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

  void expect_to_be_kept(test::fate_ptr const& fate) {
    EXPECT_TRUE(deleter_->drain_for(test::generous)) << "a drain waits for what nothing tells";
    EXPECT_EQ(fate->times(), 0) << "destroyed while the kernel runs";
    EXPECT_EQ(deleter_->stats().leaked, 1U);
  }

  void poll() {
    if (!GetParam()) deleter_->poll();
  }

  test::pinned_flag flag;
  test::owned_stream stream;
  test::owned_event event;
  std::optional<deleter> deleter_;
};

INSTANTIATE_TEST_SUITE_P(Worker, LostDevice, testing::Values(true, false),
                         [](auto const& which) { return which.param ? "Own" : "Polled"; });

TEST_P(LostDevice, AnOwnerRetiredAfterAHealthyDevicesEventIsKept) {
  auto const fate = make_fate();
  lose_device_0();
  deleter_->retire_after(event.get(), probe(fate));
  expect_to_be_kept(fate);
}

TEST_P(LostDevice, AnOwnerThatWasRetiredBeforeIsKept) {
  auto const fate = make_fate();
  deleter_->retire_after(event.get(), probe(fate));
  lose_device_0();
  expect_to_be_kept(fate);
}

TEST_P(LostDevice, AnOwnerThatWasTakenBeforeItsEventIsRecordedIsKeptAndTheErrorThrown) {
  auto const fate = make_fate();
  EXPECT_THROW(deleter_->retire(stream, unlucky_owner(fate)), cuda_error);
  expect_to_be_kept(fate);
}

TEST_P(LostDevice, AnOwnerThatIsNotTakenStaysWithTheCaller) {
  auto const fate = make_fate();
  probe owner(fate);
  lose_device_0();
  for (int const current : {0, healthy}) {
    static_cast<void>(cudaSetDevice(current));
    EXPECT_THROW(deleter_->retire(stream, std::move(owner)), cuda_error);
    ASSERT_TRUE(owner.is_owner());  // NOLINT(bugprone-use-after-move): that is the question
  }
}

TEST_P(LostDevice, AnOwnerThatCudaLetsGoTooEarlyIsKept) {
  auto const fate = make_fate();
  test::owned_graph graph = test::chain({test::wait_flag_call(flag.get())});
  deleter_->retire(graph.get(), probe(fate));
  test::owned_exec exec = test::instantiate(graph);
  graph.reset();
  test::must(cudaGraphLaunch(exec, stream));
  lose_device_0();
  exec.reset();  // CUDA destroys its user objects, and its launch goes on
  EXPECT_TRUE(test::wait_until([&] {
    poll();
    return deleter_->stats().in_graphs == 0;
  }));
  expect_to_be_kept(fate);
}

TEST_P(LostDevice, AFailedDeviceThatIsResetChangesNothing) {
  auto const fate = make_fate();
  deleter_->retire_after(event.get(), probe(fate));
  lose_device_0();
  EXPECT_FALSE(runs_nothing_after(cudaErrorIllegalAddress));
  test::must(cudaDeviceReset());  // of device 0
  EXPECT_FALSE(runs_nothing_after(cudaErrorIllegalAddress)) << "the other still runs";
  expect_to_be_kept(fate);
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
