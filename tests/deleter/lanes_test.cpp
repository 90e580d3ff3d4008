// The worker's two lanes, where recycling never waits behind a destroy that blocks, and the queue
// in front of each.
#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "release_queue.hpp"
#include "world.hpp"

namespace escrow::test {
namespace {

// Counts how often it was reclaimed.
struct counted final : reclaimable {
  explicit counted(deleter_core& core, release_lane lane = release_lane::recycle)
      : reclaimable(core, lane, -1, [](reclaimable& thing) noexcept {
          auto& it = static_cast<counted&>(thing);
          it.thread = std::this_thread::get_id();
          it.reclaimed.fetch_add(1, std::memory_order_release);
        }) {}
  [[nodiscard]] int times() const { return reclaimed.load(std::memory_order_acquire); }

  std::thread::id thread;
  std::atomic<int> reclaimed{0};
};

class Lanes : public world {
 protected:
  void block_worker() {
    worker->retire(probe(make_blocking()));
    must(wait_until([this] { return is_blocking.load(); }), "the worker is blocked");
  }
  [[nodiscard]] std::vector<std::unique_ptr<counted>> make(int count) {
    std::vector<std::unique_ptr<counted>> result;
    for (int i = 0; i < count; ++i) result.push_back(std::make_unique<counted>(worker->core()));
    return result;
  }
};

TEST_F(Lanes, AnyThreadRecyclesWhileADestroyBlocksTheWorker) {
  auto const slots = make(1000);
  std::vector<fate_ptr> fates;
  block_worker();
  for (auto const& each : slots) {
    each->push();
    worker->retire(probe(fates.emplace_back(make_fate())));
  }
  EXPECT_FALSE(drains_soon());
  worker->core().recycle();
  for (auto const& each : slots) {
    EXPECT_EQ(each->times(), 1);
    EXPECT_EQ(each->thread, std::this_thread::get_id());
  }
  for (auto const& fate : fates) EXPECT_TRUE(is_out(fate));
  may_end.store(true);
  worker->drain();
  for (auto const& fate : fates) EXPECT_EQ(fate->times(), 1);
}

TEST_F(Lanes, WhatIsReleasedDuringADestroyIsRecycledBeforeTheNextDestroy) {
  counted it(worker->core());
  int seen = -1;
  block_worker();
  worker->retire(probe(make_fate([&] { seen = it.times(); })));
  worker->retire(probe(make_fate()));
  it.push();
  may_end.store(true);
  worker->drain();
  EXPECT_EQ(seen, 1);
}

TEST_F(Lanes, ADrainWaitsForBoth) {
  std::vector<std::unique_ptr<counted>> all;
  for (int i = 0; i < 500; ++i) {
    auto const lane = i % 2 == 0 ? release_lane::recycle : release_lane::destroy;
    all.push_back(std::make_unique<counted>(worker->core(), lane));
    all.back()->push();
  }
  worker->drain();
  for (auto const& each : all) EXPECT_EQ(each->times(), 1);
}

// The queue alone. The model checker explores it with one place for each thing; here places are
// reserved meanwhile, and used again.

struct numbered final : reclaimable {
  numbered(deleter_core& core, std::size_t from, int number)
      : reclaimable(core, release_lane::destroy, -1, [](reclaimable&) noexcept {}),
        producer(from),
        index(number) {}
  std::size_t producer;
  int index;
};

class ReleaseQueue : public testing::Test {
 protected:
  deleter its{deleter_options{.own_worker = false}};
  release_queue queue;
};

TEST_F(ReleaseQueue, ServesReservedPlacesAgainAndAgainAlsoAfterTheyWereCancelled) {
  for (int round = 1; round <= 200; ++round) {
    std::deque<numbered> things;
    for (int i = 0; i < round; ++i) things.emplace_back(its.core(), 0, i);
    queue.reserve_places(things.size());
    for (int turn = 0; turn < 10; ++turn) {
      EXPECT_TRUE(queue.empty());
      for (numbered& each : things) queue.push(each);
      release_list taken = queue.take_all();
      for (numbered& each : things) ASSERT_EQ(taken.pop_front(), &each) << "the oldest comes first";
      EXPECT_TRUE(taken.empty());
    }
    for (int i = 0; i < round; ++i) queue.cancel_place();
  }
}

TEST_F(ReleaseQueue, LosesNothingAndKeepsTheOrderOfEachThreadWhilePlacesAreReserved) {
  constexpr std::size_t producers = 4;
  constexpr int each = 20'000;
  std::vector<std::deque<numbered>> things(producers);
  for (std::size_t p = 0; p < producers; ++p) {
    for (int i = 0; i < each; ++i) things[p].emplace_back(its.core(), p, i);
  }
  std::atomic<std::size_t> ended{0};
  std::vector<std::jthread> threads;
  for (auto& mine : things) {
    threads.emplace_back([&] {
      for (numbered& thing : mine) {
        queue.reserve_places(1);
        queue.push(thing);
      }
      ended.fetch_add(1, std::memory_order_release);
    });
  }
  std::vector<int> next(producers, 0);
  int out_of_order = 0;
  for (bool is_last = false; !is_last;) {
    is_last = ended.load(std::memory_order_acquire) == producers;
    release_list taken = queue.take_all();
    while (reclaimable* const thing = taken.pop_front()) {
      auto const& it = static_cast<numbered&>(*thing);
      if (it.index != next[it.producer]++) ++out_of_order;
    }
  }
  EXPECT_EQ(next, std::vector<int>(producers, each));
  EXPECT_EQ(out_of_order, 0);
}

}  // namespace
}  // namespace escrow::test
