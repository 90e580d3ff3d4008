// What a drain waits for, what a pass of the worker costs, and which events retiring makes.
#include <gtest/gtest.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <escrow/sim.hpp>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "escrow/deleter/deleter.hpp"
#include "escrow/detail/device.hpp"
#include "escrow/detail/ready_event.hpp"
#include "escrow/detail/reference_set.hpp"
#include "handles.hpp"
#include "kernels.hpp"
#include "memory.hpp"
#include "owners.hpp"

namespace escrow {
namespace {

using test::make_fate;
using test::probe;

class DrainBesideRetire : public testing::Test {
 protected:
  void TearDown() override {
    flag_.raise();
    deleter_.drain();
  }
  // An owner whose destructor lets another thread retire behind a busy stream, after the drain has
  // begun and before it can return.
  [[nodiscard]] probe meanwhile_retires_behind_flag() {
    return probe(make_fate([this] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the drain is under way
      std::thread([this] { deleter_.retire(stream_, probe(later_)); }).join();
    }));
  }

  test::pinned_flag flag_;
  test::owned_stream stream_ = test::make_stream();
  test::fate_ptr later_ = make_fate();
  deleter deleter_;
};

TEST_F(DrainBesideRetire, ABoundedDrainDoesNotWaitForWhatIsRetiredAfterTheCall) {
  test::must(test::launch_wait_flag(stream_, flag_.get()));
  auto const earlier = make_fate();
  deleter_.retire(meanwhile_retires_behind_flag());
  deleter_.retire(probe(earlier));
  EXPECT_TRUE(deleter_.drain_for(std::chrono::seconds(2)));
  EXPECT_TRUE(earlier->was_destroyed());
  EXPECT_FALSE(later_->was_destroyed()) << "its stream is busy";
}

TEST_F(DrainBesideRetire, ADrainDoesNotWaitForWhatIsRetiredAfterTheCall) {
  test::must(test::launch_wait_flag(stream_, flag_.get()));
  deleter_.retire(meanwhile_retires_behind_flag());
  std::atomic<bool> has_drained{false};
  std::thread draining([&] {
    deleter_.drain();
    has_drained.store(true);
  });
  EXPECT_TRUE(test::wait_until([&] { return has_drained.load(); }));
  EXPECT_FALSE(later_->was_destroyed());
  flag_.raise();
  draining.join();
}

// What a destructor retires was released by what the drain waits for, so the drain waits for it.
TEST_F(DrainBesideRetire, ADrainWaitsForWhatAnOwnersDestructorRetires) {
  auto const inner = make_fate();
  auto const middle = make_fate([&] { deleter_.retire(probe(inner)); });
  deleter_.retire(probe(make_fate([&] { deleter_.retire(probe(middle)); })));
  EXPECT_TRUE(deleter_.drain_for(test::generous));
  EXPECT_TRUE(middle->was_destroyed());
  EXPECT_TRUE(inner->was_destroyed());
}

// The handler runs on the worker, before it has reclaimed anything.
TEST_F(DrainBesideRetire, ADrainWaitsForWhatTheErrorHandlerOfTheFirstPassRetired) {
  test::owned_stream const busy = test::make_stream();
  test::must(test::launch_wait_flag(busy, flag_.get()));
  deleter* handed = nullptr;
  bool has_retired = false;
  deleter reporting({.own_worker = false, .on_error = [&](std::exception const&) {
                       if (std::exchange(has_retired, true)) return;
                       handed->retire(busy, probe(later_));
                     }});
  handed = &reporting;
  reporting.retire(busy, probe(make_fate()));
  sim::fail_call_here("cudaEventQuery", cudaErrorUnknown, 1, 1);
  static_cast<void>(reporting.poll());
  sim::clear_faults();
  ASSERT_TRUE(has_retired);
  EXPECT_FALSE(reporting.drain_for(std::chrono::milliseconds(5)));
  EXPECT_FALSE(reporting.drain_for(std::chrono::milliseconds(5)));
  flag_.raise();
  EXPECT_TRUE(reporting.drain_for(test::generous));
  EXPECT_TRUE(later_->was_destroyed());
}

TEST(RetireOnTwoDevices, MakesNoEventsInSteadyState) {
  deleter without_worker({.own_worker = false});
  test::owned_stream const near = test::make_stream();
  unsigned long long near_id = 0;
  test::must(cudaStreamGetId(near, &near_id));
  device_scope const there(1);
  // Streams of two devices whose ids are equal modulo 32, or any other small power of two.
  std::vector<test::owned_stream> far;
  unsigned long long far_id = near_id + 1;
  while ((far_id - near_id) % 64 != 0) {
    test::must(cudaStreamGetId(far.emplace_back(test::make_stream()), &far_id));
    ASSERT_LE(far.size(), 128u);
  }
  auto const round = [&] {
    for (int i = 0; i < 8; ++i) {
      without_worker.retire(near, std::make_unique<int>(1));
      without_worker.retire(far.back(), std::make_unique<int>(1));
    }
    test::must(cudaStreamSynchronize(near));
    test::must(cudaStreamSynchronize(far.back()));
    while (without_worker.poll() != 0) {
    }
  };
  for (int i = 0; i < 20; ++i) round();
  auto const made = sim::calls("cudaEventCreateWithFlags");
  auto const destroyed = sim::calls("cudaEventDestroy");
  for (int i = 0; i < 50; ++i) round();
  EXPECT_EQ(sim::calls("cudaEventCreateWithFlags") - made, 0u);
  EXPECT_EQ(sim::calls("cudaEventDestroy") - destroyed, 0u);
}

// Retirements on many streams that all wait for one kernel.
class many_orders {
 public:
  static constexpr int on_each = 4;

  explicit many_orders(int streams) {
    test::must(test::launch_wait_flag(blocked_, flag_.get()));
    test::owned_event const event = test::make_event();
    test::must(cudaEventRecord(event, blocked_));
    for (int i = 0; i < streams; ++i) {
      streams_.push_back(test::make_stream());
      test::must(cudaStreamWaitEvent(streams_.back(), event, 0));
    }
    for (int i = 0; i < on_each; ++i) {
      for (auto const& each : streams_) deleter_.retire(each, std::make_unique<int>(1));
    }
  }
  many_orders(many_orders&&) = delete;
  ~many_orders() {
    flag_.raise();
    for (auto const& each : streams_) static_cast<void>(cudaStreamSynchronize(each));
    deleter_.drain();
  }

  // The first pass, which takes in what was retired and finds nothing done.
  void first_pass() { EXPECT_EQ(deleter_.poll(), 0u); }

 private:
  test::pinned_flag flag_;
  test::owned_stream blocked_ = test::make_stream();
  std::vector<test::owned_stream> streams_;
  deleter deleter_{{.own_worker = false}};
};

TEST(ManyOrders, APassAsksAboutTheOldestRetirementOfEachStreamAlone) {
  constexpr int streams = 64;
  many_orders world(streams);
  auto const before = sim::calls("cudaEventQuery");
  world.first_pass();
  EXPECT_LE(sim::calls("cudaEventQuery") - before, static_cast<std::uint64_t>(streams));
}

// The last one of a stream is asked first, since its answer saves the other questions.
TEST(EventsThatCannotBeAsked, LeaveThePollingThreadsLastErrorAsItWas) {
  test::owned_stream const stream = test::make_stream();
  deleter without_worker({.own_worker = false});
  for (int i = 0; i < 3; ++i) without_worker.retire(stream, std::make_unique<int>(1));
  test::must(cudaStreamSynchronize(stream));
  sim::fail_call_here("cudaEventQuery", cudaErrorUnknown, 2, 1);
  EXPECT_EQ(without_worker.poll(), 3u);
  sim::clear_faults();
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  static_cast<void>(cudaGetLastError());
}

// A younger event that answers "the device is lost or the handle is none" says nothing about an
// older one, whose work may still run.
TEST(EventsThatCannotBeAsked, DoNotMakeAnOlderOneCountAsDone) {
  test::pinned_flag flag;
  test::owned_stream const stream = test::make_stream();
  std::vector<test::fate_ptr> fates;
  deleter without_worker({.own_worker = false});
  for (int skipped = 0; skipped < 4; ++skipped) {
    test::must(test::launch_wait_flag(stream, flag.get()));
    for (int i = 0; i < 4; ++i) {
      fates.push_back(make_fate());
      without_worker.retire(stream, probe(fates.back()));
    }
    sim::fail_call_here("cudaEventQuery", cudaErrorInvalidResourceHandle,
                        static_cast<std::uint64_t>(skipped) + 1, 2);
    static_cast<void>(without_worker.poll());
    sim::clear_faults();
  }
  for (auto const& each : fates) EXPECT_FALSE(each->was_destroyed()) << "its kernel still runs";
  flag.raise();
  test::must(cudaStreamSynchronize(stream));
  while (without_worker.stats().pending != 0) static_cast<void>(without_worker.poll());
  std::size_t destroyed = 0;
  for (auto const& each : fates) destroyed += static_cast<std::size_t>(each->times());
  EXPECT_EQ(destroyed + without_worker.stats().leaked, fates.size());
}

TEST(RecyclingASet, DestroysNoEventUnderTheLanesLockThoughTheCacheIsFull) {
  deleter its({.own_worker = false});
  {
    auto order = std::make_shared<launch_order>();
    order->last = std::make_shared<launch_end>(0);
    auto const set = reference_set::make(its.core(), 0, std::move(order));
  }
  for (std::size_t i = 0; i < event_cache::idle_max; ++i) event_cache::put(0, event());
  std::size_t const before = sim::alive().events;
  sim::start_recording(sim::recorded_threads::this_one);
  its.core().recycle_queued();
  EXPECT_TRUE(sim::stop_recording().empty());
  its.poll();
  EXPECT_EQ(sim::alive().events, before - 1);
  for (std::size_t i = 0; i < event_cache::idle_max; ++i) static_cast<void>(event_cache::take(0));
}

}  // namespace
}  // namespace escrow
