// Events: owned, borrowed, kept for reuse; and the caller's last error, which they leave alone.
#include <escrow/core.hpp>
#include <escrow/detail/ready_event.hpp>
#include <mutex>
#include <set>
#include <thread>
#include <type_traits>
#include <vector>

#include "world.hpp"

namespace escrow::test {
namespace {

static_assert(!std::is_copy_constructible_v<event> && !std::is_copy_assignable_v<event>);
static_assert(std::is_nothrow_move_constructible_v<event>);

class Event : public world {};

TEST_F(Event, IsDoneBeforeItWasRecordedAndOnceTheWorkBeforeItIs) {
  event const ready;
  EXPECT_TRUE(ready.ref().is_done());
  hold_up(one);
  ready.ref().record(one);
  EXPECT_TRUE(stays_false([&] { return ready.ref().is_done(); }));
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);  // "not ready" is an answer
  flag.raise();
  ready.ref().sync();
  EXPECT_TRUE(ready.ref().is_done());
}

TEST_F(Event, MakesAStreamWaitWithoutBlockingTheHost) {
  event const ready;
  hold_up(one);
  ready.ref().record(one);
  ready.ref().wait(two);
  must(launch_add(two, cells.data(), 1));
  EXPECT_TRUE(stays_false([&] { return cells.load() != 0; }));
  flag.raise();
  EXPECT_TRUE(wait_until([&] { return cells.load() == 1; }));
}

TEST_F(Event, IsEmptyOnceMovedFromOrDetached) {
  event first;
  owned_event kept;
  cudaEvent_t const handle = first.get();
  ASSERT_NE(handle, nullptr);
  event second = std::move(first);
  EXPECT_FALSE(first);  // NOLINT(bugprone-use-after-move): that is the question
  event third;
  third = std::move(second);
  EXPECT_FALSE(second);  // NOLINT(bugprone-use-after-move)
  event& same = third;
  third = std::move(same);
  EXPECT_EQ(third.get(), handle);
  kept.reset(third.detach());
  EXPECT_FALSE(third);
  EXPECT_EQ(cudaEventQuery(kept), cudaSuccess) << "the caller owns it";
  EXPECT_FALSE(event::none());
}

TEST_F(Event, FailsWithTheNameOfTheCall) {
  try {
    event_ref(cudaEvent_t{nullptr}).record(one);
    FAIL() << "a null event was recorded";
  } catch (cuda_error const& error) {
    EXPECT_STREQ(error.api(), "cudaEventRecord");
    EXPECT_NE(error.status(), cudaSuccess);
  }
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
}

TEST(EventCache, GivesBackWhatAnyThreadPut) {
  cudaEvent_t handle = nullptr;
  std::jthread([&handle] {
    event taken = event_cache::take(0);
    handle = taken.get();
    event_cache::put(0, std::move(taken));
  }).join();
  EXPECT_EQ(event_cache::take(0).get(), handle);
}

TEST(EventCache, NeverGivesOneEventToTwoThreadsAtOnce) {
  std::mutex mutex;
  std::set<cudaEvent_t> out;
  bool twice = false;
  auto const take_and_put = [&] {
    for (int round = 0; round < 500; ++round) {
      std::vector<event> held;
      for (int i = 0; i < 8; ++i) {
        held.push_back(event_cache::take(0));
        std::lock_guard const lock(mutex);
        twice |= !out.insert(held.back().get()).second;
      }
      for (event& each : held) {
        std::unique_lock lock(mutex);
        out.erase(each.get());
        lock.unlock();
        event_cache::put(0, std::move(each));
      }
    }
  };
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i) threads.emplace_back(take_and_put);
  }
  EXPECT_FALSE(twice);
}

class EventCacheOfTwoDevices : public world_of_two_devices {};

TEST_F(EventCacheOfTwoDevices, KeepsThemApartAndLeavesTheCurrentDeviceAlone) {
  event first = event_cache::take(0);
  event second = event_cache::take(1);
  EXPECT_EQ(current_device(), 0);
  EXPECT_EQ(cudaEventRecord(second.get(), elsewhere), cudaSuccess) << "it is of the other device";
  cudaEvent_t const of_first = first.get();
  cudaEvent_t const of_second = second.get();
  event_cache::put(1, std::move(second));
  event_cache::put(0, std::move(first));
  EXPECT_EQ(event_cache::take(1).get(), of_second);
  EXPECT_EQ(event_cache::take(0).get(), of_first);
}

// An error of the caller's own, which the caller has not looked at yet, while work is in flight.
class LastError : public world {
 protected:
  void make_error() {
    must(cudaEventQuery(nullptr) != cudaSuccess, "a null event is an error");
    earlier = cudaPeekAtLastError();
    must(earlier != cudaSuccess, "CUDA keeps it");
  }

  cudaError_t earlier = cudaSuccess;
};

TEST_F(LastError, IsNeitherSetNorClearedByAnEventThatIsNotReady) {
  event const ready;
  hold_up(one);
  ready.ref().record(one);
  EXPECT_EQ(cudaEventQuery(ready.get()), cudaErrorNotReady);
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  make_error();
  EXPECT_FALSE(succeeded(cudaEventQuery(ready.get())));
  EXPECT_EQ(cudaPeekAtLastError(), earlier);
  EXPECT_FALSE(ready.ref().is_done());
  EXPECT_EQ(cudaGetLastError(), earlier);
}

TEST_F(LastError, SurvivesAClaimWhileASlotIsInUse) {
  int made_so_far = 0;
  resource_pool<int> pool(options(4), [&] { return made_so_far++; });
  {
    auto const lease = pool.claim(one);
    hold_up(one);
  }
  make_error();
  static_cast<void>(pool.claim(two));
  EXPECT_EQ(cudaGetLastError(), earlier);
  EXPECT_EQ(made_so_far, 2) << "the claim looked at a slot that was in use";
}

}  // namespace
}  // namespace escrow::test
