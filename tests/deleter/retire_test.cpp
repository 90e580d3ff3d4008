// Eager retiring: not before the work is done, soon after, on the worker, and nobody waits for
// another.
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <vector>

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

class Retire : public testing::Test {
 protected:
  test::pinned_flag flag_;
  test::owned_stream stream_ = test::make_stream();
  test::owned_stream other_ = test::make_stream();
  deleter deleter_;
};

TEST_F(Retire, DestroysNotBeforeTheWorkIsDoneAndSoonAfter) {
  auto const fate = make_fate();
  test::must(test::launch_wait_flag(stream_, flag_.get()));
  deleter_.retire(stream_, probe(fate));
  EXPECT_TRUE(test::stays_false([&] { return fate->was_destroyed(); }));
  flag_.raise();
  EXPECT_TRUE(fate->wait());
  EXPECT_EQ(fate->times(), 1);
}

TEST_F(Retire, DestroysOnTheWorkerOnlyInRelaxedModeUnderItsName) {
  std::array const fates{make_fate(), make_fate(), make_fate()};
  deleter named(deleter_options{.thread_name = "a-name-that-is-too-long"});
  named.retire(stream_, probe(fates[0]));
  named.retire(probe(fates[1]));
  test::owned_event const done = test::make_event();
  named.retire_after(done.get(), probe(fates[2]));
  for (auto const& fate : fates) {
    ASSERT_TRUE(fate->wait());
    EXPECT_NE(fate->thread, std::this_thread::get_id());
    EXPECT_EQ(fate->thread, fates[0]->thread);
    EXPECT_EQ(fate->thread_name, "a-name-that-is-");
    EXPECT_EQ(fate->mode, cudaStreamCaptureModeRelaxed);
  }
}

TEST_F(Retire, WorksOnTheDefaultStreams) {
  for (cudaStream_t const stream : {cudaStream_t{}, cudaStreamLegacy, cudaStreamPerThread}) {
    auto const fate = make_fate();
    test::must(test::launch_tiny(stream));
    deleter_.retire(stream, probe(fate));
    EXPECT_TRUE(fate->wait());
  }
}

TEST_F(Retire, AnUnreadyStreamDoesNotHoldUpAnother) {
  constexpr int each = 50;
  std::vector<test::fate_ptr> blocked;
  std::vector<test::fate_ptr> free;
  test::must(test::launch_wait_flag(stream_, flag_.get()));
  for (int i = 0; i < each; ++i) {
    deleter_.retire(stream_, probe(blocked.emplace_back(make_fate())));
    test::must(test::launch_tiny(other_));
    deleter_.retire(other_, probe(free.emplace_back(make_fate())));
  }
  for (auto const& fate : free) EXPECT_TRUE(fate->wait());
  for (auto const& fate : blocked) EXPECT_FALSE(fate->was_destroyed());
  flag_.raise();
  for (auto const& fate : blocked) EXPECT_TRUE(fate->wait());
}

TEST_F(Retire, AnUnreadyEventDoesNotHoldUpAnother) {
  test::owned_event const unready = test::make_event();
  test::owned_event const ready = test::make_event();
  test::must(test::launch_wait_flag(stream_, flag_.get()));
  test::must(cudaEventRecord(unready, stream_));
  test::must(cudaEventRecord(ready, other_));
  auto const blocked = make_fate();
  auto const free = make_fate();
  deleter_.retire_after(unready.get(), probe(blocked));
  deleter_.retire_after(ready.get(), probe(free));
  EXPECT_TRUE(free->wait());
  EXPECT_FALSE(blocked->was_destroyed());
  flag_.raise();
  EXPECT_TRUE(blocked->wait());
}

TEST_F(Retire, AnOwnerThatNoWorkUsesIsDestroyedAtOnceAlthoughTheDeviceIsBusy) {
  auto const fate = make_fate();
  test::must(test::launch_wait_flag(stream_, flag_.get()));
  deleter_.retire(probe(fate));
  EXPECT_TRUE(fate->wait());
}

TEST_F(Retire, OwnersOfOneStreamAreDestroyedInOrder) {
  constexpr int count = 100;
  std::vector<int> order;  // only the worker writes, and drain() hands it over
  for (int i = 0; i < count; ++i) {
    test::must(test::launch_tiny(stream_));
    deleter_.retire(stream_, probe(make_fate([&order, i] { order.push_back(i); })));
  }
  deleter_.drain();
  ASSERT_EQ(order.size(), static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) EXPECT_EQ(order[static_cast<std::size_t>(i)], i);
}

TEST_F(Retire, WorkEnqueuedLaterIsNotWaitedFor) {
  auto const fate = make_fate();
  test::must(test::launch_tiny(stream_));
  deleter_.retire(stream_, probe(fate));
  test::must(test::launch_wait_flag(stream_, flag_.get()));
  EXPECT_TRUE(fate->wait());
}

TEST_F(Retire, TheStreamMayBeDestroyedAtOnce) {
  auto const fate = make_fate();
  test::must(test::launch_wait_flag(stream_, flag_.get()));
  deleter_.retire(stream_, probe(fate));
  stream_.reset();
  EXPECT_TRUE(test::stays_false([&] { return fate->was_destroyed(); }));
  flag_.raise();
  EXPECT_TRUE(fate->wait());
}

TEST_F(Retire, AnOwnerMayRetireAnotherFromItsDestructor) {
  auto const last = make_fate();
  auto const middle = make_fate([&] { deleter_.retire(stream_, probe(last)); });
  auto const first = make_fate([&] { deleter_.retire(probe(middle)); });
  deleter_.retire(stream_, probe(first));
  EXPECT_TRUE(last->wait());
  EXPECT_EQ(first->times() + middle->times() + last->times(), 3);
}

class RetireOnTwoDevices : public Retire {
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

TEST_F(RetireOnTwoDevices, TheOwnerIsDestroyedWithTheStreamsDeviceCurrent) {
  for (int round = 0; round < 20; ++round) {
    auto const here = make_fate();
    auto const there = make_fate();
    deleter_.retire(stream_, probe(here));
    deleter_.retire(elsewhere_, probe(there));  // device 0 is current
    ASSERT_TRUE(here->wait() && there->wait());
    EXPECT_EQ(here->device, 0);
    EXPECT_EQ(there->device, 1);
  }
}

TEST_F(RetireOnTwoDevices, TheWorkOfAnotherDeviceIsWaitedFor) {
  auto const fate = make_fate();
  {
    device_scope const there(1);
    test::must(test::launch_wait_flag(elsewhere_, flag_.get()));
  }
  deleter_.retire(elsewhere_, probe(fate));
  EXPECT_TRUE(test::stays_false([&] { return fate->was_destroyed(); }));
  flag_.raise();
  EXPECT_TRUE(fate->wait());
  test::must(cudaStreamSynchronize(elsewhere_));
}

TEST_F(RetireOnTwoDevices, AnOwnerThatNoWorkUsesGetsTheDeviceCurrentAtItsRetirement) {
  auto const fate = make_fate();
  {
    device_scope const there(1);
    deleter_.retire(probe(fate));
  }
  ASSERT_TRUE(fate->wait());
  EXPECT_EQ(fate->device, 1);
}

TEST_F(RetireOnTwoDevices, AnOwnerThatLeavesAnotherDeviceCurrentDoesNotMisleadTheNext) {
  auto const careless = make_fate([] { static_cast<void>(cudaSetDevice(1)); });
  auto const next = make_fate();
  test::must(test::launch_wait_flag(stream_, flag_.get()));
  deleter_.retire(stream_, probe(careless));
  deleter_.retire(stream_, probe(next));
  flag_.raise();  // both in one pass
  ASSERT_TRUE(careless->wait() && next->wait());
  EXPECT_EQ(next->device, 0);
}

TEST_F(RetireOnTwoDevices, TheCallersDeviceStays) {
  deleter_.retire(elsewhere_, probe(make_fate()));
  int device = -1;
  test::must(cudaGetDevice(&device));
  EXPECT_EQ(device, 0);
}

}  // namespace
}  // namespace escrow
