// The wakeup: no wake-up is lost, and none is made for a worker that is awake.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "owners.hpp"
#include "stress_world.hpp"
#include "wakeup.hpp"

namespace escrow::test {
namespace {

TEST(WakeupStore, LendsAgainWhatWasReturnedAndNeverFreesIt) {
  wakeup_store::loan first = wakeup_store::take();
  wakeup_store::loan const second = wakeup_store::take();
  wakeup* const known = first.get();
  EXPECT_NE(known, second.get());
  first.reset();
  known->notify();  // late, and harmless
  EXPECT_EQ(wakeup_store::take().get(), known);
}

TEST(Wakeup, LetsNoWorkerSleepOnWork) {
  wakeup wake;
  EXPECT_FALSE(wake.try_sleep([] { return false; }));
}

TEST(Wakeup, BeforeTheWaitIsNotLost) {
  wakeup wake;
  ASSERT_TRUE(wake.try_sleep([] { return true; }));
  wake.notify();
  wake.wait_for_notify();  // returns at once, or the test times out
}

// One round: every producer pushes one item; the consumer takes all and sleeps again.
class sleeper {
 public:
  sleeper() : thread_([this] { consume(); }) {}
  ~sleeper() {
    ends_.store(true, std::memory_order_release);
    wake.notify();
    thread_.join();
  }

  void push() {
    items_.fetch_add(1, std::memory_order_release);
    wake.notify();
  }
  [[nodiscard]] long taken() const { return taken_.load(std::memory_order_acquire); }
  [[nodiscard]] long slept() const { return slept_.load(std::memory_order_relaxed); }

  wakeup wake;

 private:
  void consume() {
    while (!ends_.load(std::memory_order_acquire)) {
      taken_.fetch_add(items_.exchange(0, std::memory_order_acquire), std::memory_order_release);
      bool const sleeps = wake.try_sleep([this] {
        return items_.load(std::memory_order_acquire) == 0 &&
               !ends_.load(std::memory_order_acquire);
      });
      if (!sleeps) continue;
      slept_.fetch_add(1, std::memory_order_relaxed);
      wake.wait_for_notify();
    }
  }

  std::atomic<bool> ends_{false};
  std::atomic<long> items_{0};
  std::atomic<long> taken_{0};
  std::atomic<long> slept_{0};
  std::thread thread_;
};

// Without the pauses of wait_until(): rounds shall follow each other closely.
bool reaches(sleeper const& worker, long count) {
  auto const end = std::chrono::steady_clock::now() + generous;
  while (worker.taken() < count) {
    if (std::chrono::steady_clock::now() > end) return worker.taken() >= count;
    std::this_thread::yield();
  }
  return true;
}

// With one producer, rounds follow each other closely; with four, who wakes the worker is a race.
class WakeupOf : public testing::TestWithParam<int> {};

TEST_P(WakeupOf, ProducersIsNeverLost) {
  constexpr long rounds_max = 20'000;  // on a busy machine the time is over before
  int const producers = GetParam();
  auto const end = std::chrono::steady_clock::now() + stress_time() / 2;
  sleeper worker;
  std::atomic<long> pushed{0};
  std::atomic<bool> lost{false};
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < producers; ++i) {
      threads.emplace_back([&] {
        for (long round = 0; round < rounds_max && !lost; ++round) {
          if (std::chrono::steady_clock::now() > end) return;
          pushed.fetch_add(1);
          worker.push();
          // At the end of its round, all that this one pushed was taken, or it was lost.
          if (!reaches(worker, round + 1)) lost.store(true);
        }
      });
    }
  }
  EXPECT_FALSE(lost);
  EXPECT_TRUE(reaches(worker, pushed));
  if (producers == 1) {
    EXPECT_GT(worker.slept(), pushed / 4) << "the worker hardly slept: nothing was tested";
  }
}

INSTANTIATE_TEST_SUITE_P(Some, WakeupOf, testing::Values(1, 4));

TEST(Wakeup, OfADeletersWorkerIsNeverLost) {
  constexpr int rounds_max = 2000;
  auto const end = std::chrono::steady_clock::now() + stress_time() / 2;
  deleter its(deleter_options{.linger = std::chrono::microseconds(0)});
  for (int i = 1; i <= rounds_max && std::chrono::steady_clock::now() < end; ++i) {
    auto const fate = make_fate();
    its.retire(probe(fate));
    ASSERT_TRUE(fate->wait()) << "round " << i;
  }
}

struct flagged final : reclaimable {
  explicit flagged(deleter_core& hub)
      : reclaimable(hub, release_lane::destroy, -1, [](reclaimable& node) noexcept {
          static_cast<flagged&>(node).arrived.store(true, std::memory_order_release);
        }) {}
  std::atomic<bool> arrived{false};
};

// A pusher may still be about to ring when its node has been reclaimed and everything that
// its owner has is gone: a destroy callback on CUDA's own thread cannot be waited for.
TEST(Wakeup, OutlivesThePusherOfANodeThatWasReclaimed) {
  std::atomic<flagged*> next{nullptr};
  std::atomic<bool> ends{false};
  std::thread pusher([&] {
    while (!ends.load(std::memory_order_acquire)) {
      if (flagged* const node = next.exchange(nullptr, std::memory_order_acq_rel)) node->push();
      std::this_thread::yield();
    }
  });
  auto const end_of_test = std::chrono::steady_clock::now() + stress_time() / 2;
  for (int i = 0; std::chrono::steady_clock::now() < end_of_test; ++i) {
    deleter owner(deleter_options{.poll_interval_min = std::chrono::microseconds(1),
                                  .poll_interval_max = std::chrono::microseconds(1)});
    flagged node(owner.core());
    next.store(&node, std::memory_order_release);
    auto const end = std::chrono::steady_clock::now() + generous;
    while (!node.arrived.load(std::memory_order_acquire)) {
      if (std::chrono::steady_clock::now() > end) break;
      std::this_thread::yield();
    }
    ASSERT_TRUE(node.arrived.load(std::memory_order_acquire)) << "round " << i;
  }
  ends.store(true, std::memory_order_release);
  pusher.join();
}

}  // namespace
}  // namespace escrow::test
