// SPDX-License-Identifier: Apache-2.0
// The release queue with the wakeup: nothing is lost, and no worker sleeps on work.
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "escrow/deleter/deleter.hpp"
#include "escrow/internal/release_queue.hpp"
#include "escrow/internal/wakeup.hpp"
#include "expect_fine.hpp"
#include "model_atomic.hpp"

namespace escrow::model {
namespace {

// What a node carries is plain: whoever takes it must have seen what the pusher wrote.
struct numbered final : reclaimable {
  explicit numbered(deleter_core& core)
      : reclaimable(core, release_lane::destroy, -1, [](reclaimable&) noexcept {}) {}
  std::size_t producer = 0;
  int index = 0;
};

template <class Wakeup>
struct meeting {
  meeting(std::size_t producers, std::size_t items)
      : nodes_of(deleter_options{.own_worker = false}), items_each(items), next(producers, 0) {
    for (std::size_t i = 0; i < producers * items; ++i) {
      nodes.push_back(std::make_unique<numbered>(nodes_of.core()));
      queue.reserve_places(1);
    }
  }

  void produce(std::size_t producer) {
    for (std::size_t i = 0; i < items_each; ++i) {
      forget(i);
      numbered& node = *nodes[producer * items_each + i];
      node.producer = producer;
      node.index = static_cast<int>(i);
      queue.push(node);
      wakes.notify();
    }
  }

  // As the worker does, until all have come.
  void consume() {
    for (std::size_t taken = 0; taken < nodes.size();) {
      forget(taken);
      release_list all = queue.take_all();
      bool const was_empty = all.empty();
      while (reclaimable* const each = all.pop_front()) {
        auto const& node = static_cast<numbered&>(*each);
        require(node.index == next[node.producer]++,
                "a producer's items are out of order, or one is lost or comes twice");
        ++taken;
      }
      if (was_empty && wakes.try_sleep([this] { return queue.empty(); })) wakes.wait_for_notify();
    }
  }

  release_queue queue;
  Wakeup wakes;
  deleter nodes_of;
  std::vector<std::unique_ptr<numbered>> nodes;
  std::size_t items_each;
  std::vector<int> next;
};

template <class Wakeup>
program of(std::size_t producers, std::size_t items) {
  return [=](world& all) {
    auto& met = all.make<meeting<Wakeup>>("meeting", producers, items);
    all.call(&met.queue, sizeof(met.queue), "queue");
    all.call(&met.queue, 8, "top");
    all.call(reinterpret_cast<char*>(&met.queue) + 64, 8, "free list");
    all.call(&met.wakes, sizeof(met.wakes), "wakeup");
    for (std::size_t i = 0; i < producers; ++i) {
      all.thread("producer " + std::to_string(i), [&met, i] { met.produce(i); });
    }
    all.thread("consumer", [&met] { met.consume(); });
  };
}

using bare_wakeup = basic_wakeup<bare_atomic>;

TEST(Queue, LosesNothingWhateverOneProducerAndASleepingConsumerDo) {
  expect_fine({.name = "queue, std wakeup: 1 producer x 2"}, of<wakeup>(1, 2));
  expect_fine({.name = "queue, wakeup: 1 producer x 2"}, of<bare_wakeup>(1, 2));
}

TEST(Queue, LosesNothingWhateverTwoProducersAndASleepingConsumerDo) {
  auto const one_each =
      is_deep() ? options{.name = "queue, wakeup: 2 producers x 1"}
                : options{.name = "queue, wakeup: 2 producers x 1, <= 1 old read", .older_max = 1};
  expect_fine(one_each, of<bare_wakeup>(2, 1));
  expect_fine({.name = "queue, wakeup: 2 x 2, few switches, few old reads",
               .switches_max = is_deep() ? 3U : 2U,
               .older_max = is_deep() ? 2U : 1U},
              of<bare_wakeup>(2, 2));
  if (is_deep()) {
    expect_fine({.name = "queue, wakeup: 2 producers x 2, no old read", .older_max = 0},
                of<bare_wakeup>(2, 2));
  }
}

TEST(Queue, LosesNothingInManyExecutionsAtRandom) {
  std::uint64_t const many = is_deep() ? 200'000 : 4'000;
  for (std::size_t const n : {2U, 3U, 4U}) {
    expect_fine({.name = "queue, std wakeup: n producers x n", .random = many}, of<wakeup>(n, n));
  }
}

// The weaker orders that are found, as "function order", of each order that can be weakened.
std::multiset<std::string> weaker_orders_found(options const& how, program const& what) {
  std::multiset<std::string> result;
  for (planted const& each : plant_each(how, what)) {
    print(each);
    if (each.found.error.empty()) continue;
    result.insert(each.bug.at.function + " " + name_of(each.bug.to));
  }
  return result;
}

TEST(PlantedInTheQueue, WeakerOrdersAreFoundWhereTheyMatter) {
  auto const found = weaker_orders_found({.name = "queue", .random = 1'000}, of<wakeup>(2, 2));
  EXPECT_TRUE(found.contains("stack::link_nodes_atomic relaxed"));
  EXPECT_TRUE(found.contains("freelist_stack::deallocate_impl relaxed"));
}

// The wakeup alone, with work that is seen through it only, as that of the object store: the
// flag is relaxed, where Boost's stack is sequentially consistent and would hide a weak wakeup.
// The worker takes only what it has seen by a load, which may be old, as the stack's consume_all().
template <class Wakeup>
struct flagged_work {
  Wakeup wakes;
  std::atomic<std::uint32_t> has_work[2] = {};
};

template <class Wakeup>
void flags_and_a(world& all) {
  auto& shared = all.make<flagged_work<Wakeup>>("work");
  all.call(&shared.wakes, sizeof(shared.wakes), "wakeup");
  for (std::size_t i = 0; i < 2; ++i) {
    all.thread("pusher " + std::to_string(i), [&shared, i] {
      shared.has_work[i].store(1, std::memory_order_relaxed);
      shared.wakes.notify();
    });
  }
  all.thread("worker", [&shared] {
    std::uint32_t taken = 0;
    while (taken < 2) {
      forget(taken);
      for (auto& flag : shared.has_work) {
        if (flag.load(std::memory_order_relaxed) == 0) continue;
        taken += flag.exchange(0, std::memory_order_relaxed);
      }
      auto const is_empty = [&shared] {
        return shared.has_work[0].load(std::memory_order_relaxed) == 0 &&
               shared.has_work[1].load(std::memory_order_relaxed) == 0;
      };
      if (taken < 2 && shared.wakes.try_sleep(is_empty)) shared.wakes.wait_for_notify();
    }
  });
}

TEST(Wakeup, LosesNoWakeUpForWorkThatIsSeenThroughItOnly) {
  expect_fine({.name = "wakeup, relaxed flags: 2 pushers"}, flags_and_a<bare_wakeup>);
}

TEST(PlantedInTheWakeup, WeakerOrdersAreFoundWhereTheyMatter) {
  auto const found = weaker_orders_found({.name = "wakeup"}, flags_and_a<bare_wakeup>);
  EXPECT_TRUE(found.contains("basic_wakeup::notify acquire"));
  EXPECT_GE(found.size(), 2U);
}

}  // namespace
}  // namespace escrow::model
