// Events: owned, borrowed, and kept for reuse.
#include "escrow/core/event.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <set>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "escrow/core/error.hpp"
#include "escrow/detail/device.hpp"
#include "escrow/detail/ready_event.hpp"
#include "handles.hpp"
#include "kernels.hpp"
#include "memory.hpp"
#include "wait_until.hpp"

namespace escrow {
namespace {

static_assert(!std::is_copy_constructible_v<event> && !std::is_copy_assignable_v<event>);
static_assert(std::is_nothrow_move_constructible_v<event>);

int device_count() {
  int devices = 0;
  test::must(cudaGetDeviceCount(&devices));
  return devices;
}

TEST(Event, IsDoneBeforeItWasEverRecorded) {
  EXPECT_TRUE(event().ref().is_done());
}

TEST(Event, IsDoneOnlyWhenTheWorkBeforeItIs) {
  test::pinned_flag flag;
  test::owned_stream const stream = test::make_stream();
  event const ready;
  test::must(test::launch_wait_flag(stream, flag.get()));
  ready.ref().record(stream);
  EXPECT_TRUE(test::stays_false([&] { return ready.ref().is_done(); }));
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);  // "not ready" is an answer
  flag.raise();
  ready.ref().sync();
  EXPECT_TRUE(ready.ref().is_done());
}

TEST(Event, MakesAStreamWaitWithoutBlockingTheHost) {
  test::pinned_flag flag;
  test::pinned_ints cell;
  test::owned_stream const first = test::make_stream();
  test::owned_stream const second = test::make_stream();
  event const ready;
  test::must(test::launch_wait_flag(first, flag.get()));
  ready.ref().record(first);
  ready.ref().wait(second);
  test::must(test::launch_add(second, cell.data(), 1));
  EXPECT_TRUE(test::stays_false([&] { return cell.load() != 0; }));
  flag.raise();
  EXPECT_TRUE(test::wait_until([&] { return cell.load() == 1; }));
  test::must(cudaStreamSynchronize(second));
}

TEST(Event, IsEmptyOnceMovedFrom) {
  event first;
  cudaEvent_t const handle = first.get();
  ASSERT_NE(handle, nullptr);
  event second = std::move(first);
  EXPECT_FALSE(first);  // NOLINT(bugprone-use-after-move): that is the question
  EXPECT_EQ(second.get(), handle);
  event third;
  third = std::move(second);
  EXPECT_FALSE(second);  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(third.get(), handle);
}

TEST(Event, StaysWhatItIsWhenAssignedToItself) {
  event it;
  cudaEvent_t const handle = it.get();
  event& same = it;
  it = std::move(same);
  EXPECT_EQ(it.get(), handle);
}

TEST(Event, DetachedBelongsToTheCaller) {
  test::owned_event kept;
  {
    event it;
    kept.reset(it.detach());
    EXPECT_FALSE(it);
  }
  EXPECT_EQ(cudaEventQuery(kept), cudaSuccess);
  EXPECT_FALSE(event::none());
}

TEST(EventCache, GivesBackWhatWasPut) {
  event taken = event_cache::take(0);
  cudaEvent_t const handle = taken.get();
  event_cache::put(0, std::move(taken));
  event const again = event_cache::take(0);
  EXPECT_EQ(again.get(), handle);
}

TEST(EventCache, GivesAnEventOfTheDeviceThatWasAskedForAndLeavesTheCurrentOneAlone) {
  if (device_count() < 2) GTEST_SKIP() << "needs two devices";
  event_cache::put(0, event_cache::take(0));  // an idle one of device 0 must not be handed out
  event const taken = event_cache::take(1);
  int current = -1;
  test::must(cudaGetDevice(&current));
  EXPECT_EQ(current, 0);
  device_scope const there(1);
  test::owned_stream const stream = test::make_stream();
  EXPECT_EQ(cudaEventRecord(taken.get(), stream), cudaSuccess);
}

TEST(EventCache, KeepsDevicesApart) {
  if (device_count() < 2) GTEST_SKIP() << "needs two devices";
  event first = event_cache::take(0);
  event second = event_cache::take(1);
  cudaEvent_t const of_first = first.get();
  cudaEvent_t const of_second = second.get();
  event_cache::put(1, std::move(second));
  event_cache::put(0, std::move(first));
  EXPECT_EQ(event_cache::take(1).get(), of_second);
  EXPECT_EQ(event_cache::take(0).get(), of_first);
}

TEST(EventCache, ServesTheThreadsOfAProcessAlike) {
  cudaEvent_t handle = nullptr;
  std::thread([&handle] {
    event taken = event_cache::take(0);
    handle = taken.get();
    event_cache::put(0, std::move(taken));
  }).join();
  event const taken = event_cache::take(0);
  EXPECT_EQ(taken.get(), handle);
}

TEST(EventCache, NeverGivesOneEventToTwoThreadsAtOnce) {
  constexpr int threads = 4;
  constexpr int rounds = 500;
  constexpr int held_max = 8;
  std::atomic<bool> twice{false};
  std::mutex mutex;
  std::set<cudaEvent_t> out;
  auto const body = [&] {
    for (int i = 0; i < rounds; ++i) {
      std::vector<event> held;
      for (int k = 0; k < held_max; ++k) {
        held.push_back(event_cache::take(0));
        std::lock_guard const lock(mutex);
        if (!out.insert(held.back().get()).second) twice = true;
      }
      for (event& each : held) {
        {
          std::lock_guard const lock(mutex);
          out.erase(each.get());
        }
        event_cache::put(0, std::move(each));
      }
    }
  };
  std::vector<std::thread> running;
  for (int i = 0; i < threads; ++i) running.emplace_back(body);
  for (std::thread& each : running) each.join();
  EXPECT_FALSE(twice);
}

TEST(EventCache, KeepsNoMoreThanItSaysAndMakesNewOnesAgain) {
  std::vector<event> many;
  for (std::size_t i = 0; i < event_cache::idle_max + 10; ++i) many.push_back(event_cache::take(0));
  for (event& each : many) event_cache::put(0, std::move(each));
  std::set<cudaEvent_t> handles;
  std::vector<event> again;
  for (std::size_t i = 0; i < event_cache::idle_max + 10; ++i) {
    again.push_back(event_cache::take(0));
    handles.insert(again.back().get());
  }
  EXPECT_EQ(handles.size(), again.size());
  // As this test found it, but for a few.
  again.erase(again.begin() + 4, again.end());
  for (event& each : again) event_cache::put(0, std::move(each));
}

}  // namespace
}  // namespace escrow
