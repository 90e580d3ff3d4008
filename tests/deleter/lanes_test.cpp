// Two lanes: what is recycled never waits behind a destroy that blocks.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "escrow/deleter/deleter.hpp"
#include "owners.hpp"

namespace escrow {
namespace {

using test::make_fate;
using test::probe;

struct slot final : reclaimable {
  explicit slot(deleter_core& hub, release_lane lane = release_lane::recycle)
      : reclaimable(hub, lane, -1, [](reclaimable& node) noexcept {
          auto& it = static_cast<slot&>(node);
          it.thread = std::this_thread::get_id();
          it.recycled.fetch_add(1, std::memory_order_release);
        }) {}
  std::thread::id thread;
  std::atomic<int> recycled{0};
  [[nodiscard]] int times() const { return recycled.load(std::memory_order_acquire); }
};

// An owner whose destructor blocks the worker until it is let go.
class Lanes : public testing::Test {
 protected:
  void block_worker() {
    deleter_.retire(probe(make_fate([this] {
      is_blocked_.store(true, std::memory_order_release);
      // Bounded by the test: TearDown lets go.
      while (!is_let_go_.load(std::memory_order_acquire)) std::this_thread::yield();
    })));
    ASSERT_TRUE(test::wait_until([this] { return is_blocked_.load(std::memory_order_acquire); }));
  }
  void let_go() { is_let_go_.store(true, std::memory_order_release); }
  void TearDown() override {
    let_go();
    deleter_.drain();
  }

  std::atomic<bool> is_blocked_{false};
  std::atomic<bool> is_let_go_{false};
  deleter deleter_;
};

TEST_F(Lanes, TheWorkerRecyclesWhenItHasNothingElseToDo) {
  slot it(deleter_.core());
  for (int i = 1; i <= 100; ++i) {
    it.push();
    ASSERT_TRUE(test::wait_until([&] { return it.times() == i; }));
  }
}

TEST_F(Lanes, AnyoneMayRecycleWhileADestroyBlocksTheWorker) {
  slot it(deleter_.core());
  block_worker();
  it.push();
  deleter_.core().recycle();
  EXPECT_EQ(it.times(), 1);
  EXPECT_EQ(it.thread, std::this_thread::get_id());
}

TEST_F(Lanes, PushingAndRetiringDoNotWaitForABlockedWorker) {
  std::vector<std::unique_ptr<slot>> slots;
  std::vector<test::fate_ptr> fates;
  block_worker();
  for (int i = 0; i < 1000; ++i) {
    slots.emplace_back(std::make_unique<slot>(deleter_.core()))->push();
    deleter_.retire(probe(fates.emplace_back(make_fate())));
  }
  EXPECT_FALSE(deleter_.drain_for(std::chrono::milliseconds(20)));
  deleter_.core().recycle();
  for (auto const& each : slots) EXPECT_EQ(each->times(), 1);
  for (auto const& fate : fates) EXPECT_EQ(fate->times(), 0);
  let_go();
  deleter_.drain();
  for (auto const& fate : fates) EXPECT_EQ(fate->times(), 1);
}

TEST_F(Lanes, WhatComesBackDuringADestroyIsRecycledBeforeTheNextDestroy) {
  slot it(deleter_.core());
  std::atomic<int> seen{-1};
  block_worker();
  deleter_.retire(probe(make_fate([&] { seen.store(it.times()); })));
  deleter_.retire(probe(make_fate()));
  it.push();
  let_go();
  deleter_.drain();
  EXPECT_EQ(seen, 1);
}

TEST_F(Lanes, ADrainWaitsForBothLanes) {
  std::vector<std::unique_ptr<slot>> slots;
  for (int i = 0; i < 500; ++i) {
    auto const lane = i % 2 == 0 ? release_lane::recycle : release_lane::destroy;
    slots.push_back(std::make_unique<slot>(deleter_.core(), lane));
    slots.back()->push();
  }
  deleter_.drain();
  for (auto const& each : slots) EXPECT_EQ(each->times(), 1);
}

TEST_F(Lanes, ManyThreadsMayRecycleAtOnce) {
  constexpr int threads = 4;
  constexpr int each = 500;
  std::vector<std::vector<std::unique_ptr<slot>>> slots(threads);
  for (auto& list : slots) {
    for (int i = 0; i < each; ++i) list.push_back(std::make_unique<slot>(deleter_.core()));
  }
  std::vector<std::thread> running;
  for (auto& list : slots) {
    running.emplace_back([&list, this] {
      for (auto const& one : list) {
        one->push();
        deleter_.core().recycle();
      }
    });
  }
  for (std::thread& thread : running) thread.join();
  deleter_.drain();
  for (auto const& list : slots) {
    for (auto const& one : list) EXPECT_EQ(one->times(), 1);
  }
}

}  // namespace
}  // namespace escrow
