// Waiting for what was retired, and stopping.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "build_graph.hpp"
#include "escrow/core/error.hpp"
#include "escrow/deleter/deleter.hpp"
#include "handles.hpp"
#include "kernels.hpp"
#include "memory.hpp"
#include "owners.hpp"

namespace escrow {
namespace {

using test::make_fate;
using test::probe;
using clock = std::chrono::steady_clock;
constexpr auto short_time = std::chrono::milliseconds(50);

// Both ways of running a deleter: with its own worker, and polled by the caller.
class Drain : public testing::TestWithParam<bool> {
 protected:
  test::pinned_flag flag_;
  test::owned_stream stream_ = test::make_stream();
  test::owned_stream other_ = test::make_stream();
  deleter deleter_{deleter_options{.own_worker = GetParam()}};
};

INSTANTIATE_TEST_SUITE_P(Worker, Drain, testing::Values(true, false),
                         [](auto const& which) { return which.param ? "Own" : "Polled"; });

TEST_P(Drain, ReturnsAtOnceWithNothingToDo) {
  deleter_.drain();
  EXPECT_TRUE(deleter_.drain_for(test::generous));
}

TEST_P(Drain, WaitsForAllThatWasRetiredBefore) {
  std::vector<test::fate_ptr> fates;
  for (int i = 0; i < 20; ++i) {
    cudaStream_t const stream = i % 2 == 0 ? stream_ : other_;
    test::must(test::launch_sleep(stream, 500));
    deleter_.retire(stream, probe(fates.emplace_back(make_fate())));
    deleter_.retire(probe(fates.emplace_back(make_fate())));
  }
  deleter_.drain();
  for (auto const& fate : fates) EXPECT_EQ(fate->times(), 1);
}

TEST_P(Drain, DoesNotWaitForWhatGraphsOwe) {
  test::owned_graph const graph = test::tiny_graph();
  auto const owed = make_fate();
  auto const eager = make_fate();
  deleter_.retire(graph.get(), probe(owed));
  deleter_.retire(stream_, probe(eager));
  EXPECT_TRUE(deleter_.drain_for(test::generous));
  EXPECT_EQ(eager->times(), 1);
  EXPECT_EQ(owed->times(), 0);
}

TEST_P(Drain, WaitsForWhatAGraphHasGivenBackBefore) {
  auto const fate = make_fate();
  {
    test::owned_graph const graph = test::tiny_graph();
    deleter_.retire(graph.get(), probe(fate));
  }
  deleter_.drain();
  EXPECT_EQ(fate->times(), 1);
}

TEST_P(Drain, TimesOutWhileAKernelRunsAndReachesItLater) {
  auto const fate = make_fate();
  test::must(test::launch_wait_flag(stream_, flag_.get()));
  deleter_.retire(stream_, probe(fate));
  auto const begin = clock::now();
  EXPECT_FALSE(deleter_.drain_for(short_time));
  EXPECT_GE(clock::now() - begin, short_time);
  EXPECT_LT(clock::now() - begin, test::generous);
  EXPECT_FALSE(deleter_.drain_for(std::chrono::nanoseconds(0)));
  EXPECT_FALSE(deleter_.drain_for(std::chrono::nanoseconds(-1)));
  EXPECT_FALSE(fate->was_destroyed());
  flag_.raise();
  EXPECT_TRUE(deleter_.drain_for(test::generous));
  EXPECT_EQ(fate->times(), 1);
}

TEST_P(Drain, DoesNotWaitForWhatIsRetiredAfterIt) {
  auto const before = make_fate();
  auto const after = make_fate();
  deleter_.retire(stream_, probe(before));
  std::atomic<bool> drained{false};
  std::atomic<bool> ends{false};
  // Somebody retires behind a kernel that does not end, over and over.
  test::must(test::launch_wait_flag(other_, flag_.get()));
  std::vector<test::fate_ptr> later;
  std::thread retiring([&] {
    while (!ends.load(std::memory_order_acquire)) {
      deleter_.retire(other_, probe(later.emplace_back(make_fate())));
      std::this_thread::yield();
    }
  });
  // What was retired before may include some behind the kernel, so it must not be drain() here.
  bool const reached = test::wait_until([&] {
    if (!GetParam()) deleter_.poll();
    return before->was_destroyed();
  });
  drained.store(reached, std::memory_order_release);
  ends.store(true, std::memory_order_release);
  retiring.join();
  EXPECT_TRUE(drained);
  flag_.raise();
  deleter_.drain();
  for (auto const& fate : later) EXPECT_EQ(fate->times(), 1);
}

TEST_P(Drain, IsRefusedInAnOwnersDestructor) {
  std::atomic<int> refused{0};
  auto const fate = make_fate([&] {
    try {
      deleter_.drain();
    } catch (usage_error const&) {
      refused.fetch_add(1, std::memory_order_relaxed);
    }
    try {
      static_cast<void>(deleter_.stop_for(test::generous));
    } catch (usage_error const&) {
      refused.fetch_add(1, std::memory_order_relaxed);
    }
    if (deleter_.poll() != 0) refused.fetch_add(100, std::memory_order_relaxed);
  });
  deleter_.retire(probe(fate));
  deleter_.drain();
  EXPECT_TRUE(fate->was_destroyed());
  EXPECT_EQ(refused, 2);
}

TEST_P(Drain, ManyThreadsMayDrainAtOnce) {
  std::vector<test::fate_ptr> fates;
  for (int i = 0; i < 10; ++i) {
    test::must(test::launch_sleep(stream_, 200));
    deleter_.retire(stream_, probe(fates.emplace_back(make_fate())));
  }
  std::atomic<int> missing{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      deleter_.drain();
      for (auto const& fate : fates) missing.fetch_add(fate->times() == 1 ? 0 : 1);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(missing, 0);
}

TEST_P(Drain, StopRefusesAndTheOwnerStaysWithTheCaller) {
  auto const before = make_fate();
  auto const after = make_fate();
  deleter_.retire(stream_, probe(before));
  deleter_.stop();
  EXPECT_EQ(before->times(), 1);
  probe owner(after);
  test::owned_graph const graph = test::tiny_graph();
  test::owned_event const event = test::make_event();
  EXPECT_THROW(deleter_.retire(stream_, std::move(owner)), usage_error);
  EXPECT_THROW(deleter_.retire(std::move(owner)), usage_error);
  EXPECT_THROW(deleter_.retire(graph.get(), std::move(owner)), usage_error);
  EXPECT_THROW(deleter_.retire_after(event.get(), std::move(owner)), usage_error);
  EXPECT_TRUE(owner.is_owner());  // NOLINT(bugprone-use-after-move): that is the question
  EXPECT_FALSE(after->was_destroyed());
  deleter_.stop();  // again: nothing to do
  deleter_.drain();
}

TEST_P(Drain, StopForReturnsFalseWhileAKernelRunsAndTheOwnerGoesLater) {
  auto const fate = make_fate();
  test::must(test::launch_wait_flag(stream_, flag_.get()));
  deleter_.retire(stream_, probe(fate));
  EXPECT_FALSE(deleter_.stop_for(short_time));
  EXPECT_FALSE(fate->was_destroyed());
  EXPECT_THROW(deleter_.retire(probe(make_fate())), usage_error);
  flag_.raise();
  EXPECT_TRUE(deleter_.stop_for(test::generous));
  EXPECT_EQ(fate->times(), 1);
}

TEST_P(Drain, StopForReturnsFalseWhileAGraphOwes) {
  auto const fate = make_fate();
  test::owned_graph graph = test::tiny_graph();
  deleter_.retire(graph.get(), probe(fate));
  EXPECT_FALSE(deleter_.stop_for(test::generous));
  graph.reset();
  EXPECT_TRUE(deleter_.stop_for(test::generous));
  EXPECT_EQ(fate->times(), 1);
}

TEST_P(Drain, CountsWhatIsOwedAndWhatIsDone) {
  test::owned_graph graph = test::tiny_graph();
  test::must(test::launch_wait_flag(stream_, flag_.get()));
  deleter_.retire(stream_, probe(make_fate()));
  deleter_.retire(graph.get(), probe(make_fate()));
  deleter_.retire(probe(make_fate()));
  ASSERT_TRUE(test::wait_until([&] {
    if (!GetParam()) deleter_.poll();
    return deleter_.stats().reclaimed == 1 && deleter_.stats().pending == 1;
  }));
  EXPECT_EQ(deleter_.stats().in_graphs, 1U);
  EXPECT_EQ(deleter_.stats().leaked, 0U);
  EXPECT_EQ(deleter_.stats().errors, 0U);
  flag_.raise();
  graph.reset();
  deleter_.drain();
  EXPECT_TRUE(test::wait_until([&] {
    if (!GetParam()) deleter_.poll();
    return deleter_.stats().pending == 0;
  }));
  EXPECT_EQ(deleter_.stats().reclaimed, 3U);
  EXPECT_EQ(deleter_.stats().in_graphs, 0U);
}

TEST_P(Drain, NothingIsCountedAsReclaimedBeforeItIs) {
  std::atomic<std::uint64_t> seen{99};
  deleter_.retire(
      probe(make_fate([&] { seen.store(deleter_.stats().reclaimed, std::memory_order_relaxed); })));
  deleter_.drain();
  EXPECT_EQ(seen, 0U);
  EXPECT_EQ(deleter_.stats().reclaimed, 1U);
}

}  // namespace
}  // namespace escrow
