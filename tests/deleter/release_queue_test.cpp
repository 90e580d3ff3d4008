// The release queue and its list: order, and nothing lost.
#include "release_queue.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <thread>
#include <vector>

#include "escrow/deleter/deleter.hpp"
#include "wait_until.hpp"

namespace escrow {
namespace {

struct numbered final : reclaimable {
  numbered(deleter_core& hub, int from, int number)
      : reclaimable(hub, release_lane::destroy, -1, [](reclaimable&) noexcept {}),
        producer(from),
        index(number) {}
  int producer;
  int index;
};

class ReleaseQueue : public testing::Test {
 protected:
  deleter nodes_of_{deleter_options{.own_worker = false}};
  release_queue queue_;
};

numbered& as_numbered(reclaimable* node) {
  return static_cast<numbered&>(*node);
}

TEST_F(ReleaseQueue, IsEmptyAtFirstAndAfterAllWasTaken) {
  EXPECT_TRUE(queue_.empty());
  EXPECT_TRUE(queue_.take_all().empty());
  numbered node(nodes_of_.core(), 0, 0);
  queue_.reserve_places(1);
  queue_.push(node);
  EXPECT_FALSE(queue_.empty());
  EXPECT_EQ(queue_.take_all().pop_front(), &node);
  EXPECT_TRUE(queue_.empty());
}

TEST_F(ReleaseQueue, GivesBackTheOldestFirst) {
  constexpr int count = 1000;
  std::deque<numbered> nodes;
  for (int i = 0; i < count; ++i) {
    queue_.reserve_places(1);
    queue_.push(nodes.emplace_back(nodes_of_.core(), 0, i));
  }
  release_list taken = queue_.take_all();
  for (int i = 0; i < count; ++i) {
    reclaimable* const node = taken.pop_front();
    ASSERT_NE(node, nullptr);
    EXPECT_EQ(as_numbered(node).index, i);
  }
  EXPECT_TRUE(taken.empty());
}

TEST_F(ReleaseQueue, ServesOneReservedPlaceOverAndOver) {
  numbered node(nodes_of_.core(), 0, 0);
  queue_.reserve_places(1);
  for (int i = 0; i < 100'000; ++i) {
    queue_.push(node);
    ASSERT_EQ(queue_.take_all().pop_front(), &node);
  }
}

TEST_F(ReleaseQueue, ReusesPlacesThatWereGivenBack) {
  for (int round = 0; round < 100; ++round) {
    std::deque<numbered> nodes;
    for (int i = 0; i < 200; ++i) {
      queue_.reserve_places(1);
      queue_.push(nodes.emplace_back(nodes_of_.core(), round, i));
    }
    release_list taken = queue_.take_all();
    int count = 0;
    while (taken.pop_front() != nullptr) ++count;
    EXPECT_EQ(count, 200);
    for (int i = 0; i < 200; ++i) queue_.cancel_place();
  }
}

TEST_F(ReleaseQueue, LosesNothingAndKeepsEachProducersOrder) {
  constexpr int producers = 4;
  constexpr int each = 20'000;
  std::vector<std::deque<numbered>> nodes(producers);
  for (int p = 0; p < producers; ++p) {
    for (int i = 0; i < each; ++i)
      nodes[static_cast<std::size_t>(p)].emplace_back(nodes_of_.core(), p, i);
  }
  std::atomic<int> ended{0};
  std::vector<std::thread> threads;
  for (int p = 0; p < producers; ++p) {
    threads.emplace_back([&, p] {
      for (numbered& node : nodes[static_cast<std::size_t>(p)]) {
        queue_.reserve_places(1);  // reserving goes on while others push and take
        queue_.push(node);
      }
      ended.fetch_add(1, std::memory_order_release);
    });
  }
  std::vector<int> next(producers, 0);
  int taken_in_all = 0;
  int out_of_order = 0;
  while (true) {
    bool const was_last = ended.load(std::memory_order_acquire) == producers;
    release_list taken = queue_.take_all();
    while (reclaimable* const node = taken.pop_front()) {
      numbered const& it = as_numbered(node);
      if (it.index != next[static_cast<std::size_t>(it.producer)]++) ++out_of_order;
      ++taken_in_all;
    }
    if (was_last) break;
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(taken_in_all, producers * each);
  EXPECT_EQ(out_of_order, 0);
}

TEST_F(ReleaseQueue, AListKeepsOrderThroughEveryOperation) {
  std::deque<numbered> nodes;
  for (int i = 0; i < 5; ++i) nodes.emplace_back(nodes_of_.core(), 0, i);
  release_list first;
  release_list second;
  first.push_back(nodes[1]);
  first.push_front(nodes[0]);
  first.push_back(nodes[2]);
  second.push_front(nodes[3]);
  first.splice_back(second);
  EXPECT_TRUE(second.empty());
  first.splice_back(second);
  second.push_back(nodes[4]);
  EXPECT_EQ(first.back(), &nodes[3]);
  release_list moved = std::move(first);
  EXPECT_TRUE(first.empty());  // NOLINT(bugprone-use-after-move): that is the question
  for (int i = 0; i < 4; ++i) EXPECT_EQ(as_numbered(moved.pop_front()).index, i);
  EXPECT_EQ(moved.pop_front(), nullptr);
  moved.push_back(*second.pop_front());
  EXPECT_EQ(moved.front(), moved.back());
}

}  // namespace
}  // namespace escrow
