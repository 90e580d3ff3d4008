// The wakeup: no wake-up is lost, and none is made for a worker that is awake.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "escrow/deleter/deleter.hpp"
#include "stress_time.hpp"
#include "wait_until.hpp"
#include "wakeup.hpp"

namespace escrow {
namespace {

TEST(DoorbellStore, HandsOutAgainWhatWasPutBackAndNeverFreesIt) {
  wakeup_store::loan first = wakeup_store::take();
  wakeup_store::loan const second = wakeup_store::take();
  wakeup* const known = first.get();
  EXPECT_NE(known, second.get());
  first.reset();
  known->notify();  // late, and harmless
  EXPECT_EQ(wakeup_store::take().get(), known);
}

TEST(Doorbell, DoesNotLetTheWorkerSleepOnWork) {
  wakeup bell;
  EXPECT_FALSE(bell.try_sleep([] { return false; }));
}

TEST(Doorbell, ARingBeforeTheWaitIsNotLost) {
  wakeup bell;
  ASSERT_TRUE(bell.try_sleep([] { return true; }));
  bell.notify();
  bell.wait_for_notify();  // returns at once, or the test times out
}

// One round: every producer pushes one item; the consumer takes all and sleeps again.
class sleeper {
 public:
  sleeper() : thread_([this] { consume(); }) {}
  ~sleeper() {
    ends_.store(true, std::memory_order_release);
    bell.notify();
    thread_.join();
  }

  void push() {
    items_.fetch_add(1, std::memory_order_release);
    bell.notify();
  }
  [[nodiscard]] long taken() const { return taken_.load(std::memory_order_acquire); }
  [[nodiscard]] long slept() const { return slept_.load(std::memory_order_relaxed); }

  wakeup bell;

 private:
  void consume() {
    while (!ends_.load(std::memory_order_acquire)) {
      taken_.fetch_add(items_.exchange(0, std::memory_order_acquire), std::memory_order_release);
      bool const sleeps = bell.try_sleep([this] {
        return items_.load(std::memory_order_acquire) == 0 &&
               !ends_.load(std::memory_order_acquire);
      });
      if (!sleeps) continue;
      slept_.fetch_add(1, std::memory_order_relaxed);
      bell.wait_for_notify();
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
  auto const end = std::chrono::steady_clock::now() + test::generous;
  while (worker.taken() < count) {
    if (std::chrono::steady_clock::now() > end) return worker.taken() >= count;
    std::this_thread::yield();
  }
  return true;
}

TEST(Doorbell, LosesNoWakeUpOfASleepingWorker) {
  constexpr long rounds_max = 20'000;  // on a busy machine the time is over before
  auto const end_of_test = std::chrono::steady_clock::now() + test::stress_time();
  sleeper worker;
  long i = 1;
  for (; i <= rounds_max && std::chrono::steady_clock::now() < end_of_test; ++i) {
    worker.push();
    ASSERT_TRUE(reaches(worker, i)) << "lost in round " << i;
  }
  EXPECT_GT(worker.slept(), i / 4) << "the worker hardly slept: nothing was tested";
}

TEST(Doorbell, LosesNoWakeUpOfManyProducers) {
  constexpr int producers = 4;
  constexpr long rounds = 3000;
  sleeper worker;
  std::atomic<bool> lost{false};
  std::vector<std::thread> threads;
  for (int p = 0; p < producers; ++p) {
    threads.emplace_back([&] {
      for (long i = 1; i <= rounds && !lost.load(std::memory_order_relaxed); ++i) {
        worker.push();
        // All producers together have pushed at least this much by the time of this round's end.
        if (!reaches(worker, i)) lost.store(true, std::memory_order_relaxed);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(lost);
  EXPECT_TRUE(reaches(worker, producers * rounds));
}

TEST(Doorbell, TheWorkerOfADeleterWakesEachTimeItFellAsleep) {
  constexpr int rounds_max = 2000;
  auto const end_of_test = std::chrono::steady_clock::now() + test::stress_time();
  deleter owner(deleter_options{.linger = std::chrono::microseconds(0)});
  std::atomic<int> destroyed{0};
  for (int i = 1; i <= rounds_max && std::chrono::steady_clock::now() < end_of_test; ++i) {
    owner.retire(std::unique_ptr<int, std::function<void(int*)>>(new int, [&destroyed](int* it) {
      delete it;
      destroyed.fetch_add(1, std::memory_order_release);
    }));
    ASSERT_TRUE(test::wait_until([&] { return destroyed.load(std::memory_order_acquire) == i; }))
        << "round " << i;
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
TEST(Doorbell, OutlivesThePusherWhoseNodeIsAlreadyGone) {
  std::atomic<flagged*> next{nullptr};
  std::atomic<bool> ends{false};
  std::thread pusher([&] {
    while (!ends.load(std::memory_order_acquire)) {
      if (flagged* const node = next.exchange(nullptr, std::memory_order_acq_rel)) node->push();
      std::this_thread::yield();
    }
  });
  auto const end_of_test = std::chrono::steady_clock::now() + test::stress_time();
  for (int i = 0; std::chrono::steady_clock::now() < end_of_test; ++i) {
    deleter owner(deleter_options{.poll_interval_min = std::chrono::microseconds(1),
                                  .poll_interval_max = std::chrono::microseconds(1)});
    flagged node(owner.core());
    next.store(&node, std::memory_order_release);
    auto const end = std::chrono::steady_clock::now() + test::generous;
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
}  // namespace escrow
