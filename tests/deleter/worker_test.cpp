// SPDX-License-Identifier: Apache-2.0
// The worker: its two lanes and their queue; which CUDA calls retiring and passes make, and what
// passes make of answers that fail.
#include <deque>

#include "escrow/internal/deleter_core.hpp"
#include "escrow/internal/release_queue.hpp"
#include "world.hpp"

#ifdef ESCROW_TEST_RUNTIME_SIM
#include <escrow/deleter/shared_object.hpp>
#include <escrow/internal/ready_event.hpp>

#include "allocation_watch.hpp"
#include "child.hpp"
#endif

namespace escrow::test {
namespace {

// Notes that it was recycled.
struct noted final : reclaimable {
  explicit noted(deleter_core& core)
      : reclaimable(core, release_lane::recycle, -1, [](reclaimable& thing) noexcept {
          static_cast<noted&>(thing).is_recycled.store(true, std::memory_order_release);
        }) {}
  std::atomic<bool> is_recycled{false};
};

using Lanes = world;

TEST_F(Lanes, WhatIsReleasedDuringADestroyIsRecycledBeforeTheNextDestroy) {
  noted it(worker->core());
  bool seen = false;
  block_worker();
  worker->retire(probe(make_fate([&] { seen = it.is_recycled.load(std::memory_order_acquire); })));
  it.push();
  may_end.store(true);
  worker->drain();
  EXPECT_TRUE(seen);
}

// The model checker explores the queue with one place for each thing; here they are used again.
TEST(ReleaseQueue, ServesReservedPlacesAgainAndAgainAlsoAfterTheyWereCancelled) {
  deleter its(deleter_options{.own_worker = false});
  release_queue queue;
  for (int round = 1; round <= 200; ++round) {
    std::deque<noted> things;
    for (int i = 0; i < round; ++i) things.emplace_back(its.core());
    queue.reserve_places(things.size());
    for (int turn = 0; turn < 10; ++turn) {
      EXPECT_TRUE(queue.empty());
      for (noted& each : things) queue.push(each);
      release_list taken = queue.take_all();
      for (noted& each : things) ASSERT_EQ(taken.pop_front(), &each) << "the oldest comes first";
      EXPECT_TRUE(taken.empty());
    }
    for (int i = 0; i < round; ++i) queue.cancel_place();
  }
}

#ifdef ESCROW_TEST_RUNTIME_SIM
// In a process of its own, since the tests below use both devices.
void use_one_device() {
  must(cudaSetDevice(1));
  owned_stream const stream = make_stream();
  deleter its;
  its.retire(stream, std::make_unique<int>(1));
  its.drain();
  must(sim::has_context(1) && !sim::has_context(0), "that device alone is in use");
}

auto const cases = register_cases({{"uses_one_device", &use_one_device}});

TEST(WorkerContext, IsOfTheDeviceOfWhatItReclaims) {
  expect_clean_end(cases[0]);
}

std::shared_ptr<int> const nothing;  // an owner that allocates nothing

// A deleter without a worker: each pass is a call of poll().
class Passes : public world {
 protected:
  deleter its{deleter_options{.own_worker = false}};
};

using RetireOnTwoDevices = world_of_two_devices;

TEST_F(RetireOnTwoDevices, MakesNoEventsInSteadyState) {
  deleter its(deleter_options{.own_worker = false});
  unsigned long long near_id = 0;
  must(cudaStreamGetId(one, &near_id));
  device_scope const there(1);
  // Streams of two devices whose ids are equal modulo 32, or any other small power of two.
  std::vector<owned_stream> far;
  unsigned long long far_id = near_id + 1;
  while ((far_id - near_id) % 64 != 0) {
    must(cudaStreamGetId(far.emplace_back(make_stream()), &far_id));
    ASSERT_LE(far.size(), 128U);
  }
  auto const round = [&] {
    for (int i = 0; i < 8; ++i) {
      its.retire(one, nothing);
      its.retire(far.back(), nothing);
    }
    sync(one);
    sync(far.back());
    while (its.poll() != 0) continue;
  };
  for (int i = 0; i < 20; ++i) round();
  auto const calls = [] {
    return sim::calls("cudaEventCreateWithFlags") + sim::calls("cudaEventDestroy");
  };
  auto const before = calls();
  for (int i = 0; i < 50; ++i) round();
  EXPECT_EQ(calls(), before);
}

TEST_F(Passes, AskAboutTheOldestRetirementOfEachStreamAlone) {
  constexpr std::uint64_t count = 64;
  std::vector<owned_stream> streams;
  hold_up(one);
  while (streams.size() < count) order(one, streams.emplace_back(make_stream()));
  for (int i = 0; i < 4; ++i) {
    for (auto const& each : streams) its.retire(each, nothing);
  }
  auto const before = sim::calls("cudaEventQuery");
  EXPECT_EQ(its.poll(), 0U);
  EXPECT_LE(sim::calls("cudaEventQuery") - before, count);
  flag.raise();
  its.drain();
}

// A younger event that answers "the device is lost or the handle is none" says nothing about an
// older one, whose work may still run.
TEST_F(Passes, DoNotTakeAnOlderEventForDoneBecauseAYoungerOneIsInvalid) {
  std::vector<fate_ptr> fates;
  for (std::uint64_t asked = 1; asked <= 4; ++asked) {
    hold_up(one);
    for (int i = 0; i < 4; ++i) its.retire(one, probe(fates.emplace_back(make_fate())));
    sim::fail_call_here("cudaEventQuery", cudaErrorInvalidResourceHandle, asked, 2);
    static_cast<void>(its.poll());
    sim::clear_faults();
  }
  for (auto const& each : fates) EXPECT_FALSE(each->was_destroyed()) << "its kernel still runs";
  flag.raise();
  sync(one);
  EXPECT_TRUE(its.drain_for(generous));
  EXPECT_EQ(its.stats().reclaimed + its.stats().leaked, fates.size());
}

TEST_F(Passes, PutBackWhatRetiringNeedsSoThatItAllocatesNothingInSteadyState) {
  auto const shared = make_stream_shared_by<int>(its, 1);
  std::uint64_t at_first = 0;
  std::uint64_t later = 0;
  for (int round = 0; round < 20; ++round) {
    {
      allocation_watch const watch;
      for (int i = 0; i < 10; ++i) {
        its.retire(one, nothing);
        its.retire(nothing);
        record_stream(shared, one);
      }
      (round < 10 ? at_first : later) += watch.count();
    }
    sync(one);
    while (its.poll() != 0) continue;
  }
  EXPECT_GT(at_first, 0U) << "nothing is seen";
  EXPECT_EQ(later, 0U);
}

TEST_F(Passes, GiveTheEventsOfASharedObjectsUsesBack) {
  auto const shared = make_stream_shared_by<probe>(its, make_fate());
  auto const events_after = [&](int uses) {
    for (int i = 0; i < uses; ++i) {
      owned_stream const passing = make_stream();
      record_stream(shared, passing);
      sync(passing);
      its.poll();
    }
    return sim::alive().events;
  };
  hold_up(one);
  record_stream(shared, one);  // a use that is not done
  std::size_t const before = events_after(300);
  EXPECT_LE(events_after(1000), before + 1);
}

TEST_F(Passes, RecycleASetWithoutDestroyingAnEventUnderTheLanesLock) {
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
  EXPECT_EQ(sim::alive().events, before - 1) << "the cache is full";
  for (std::size_t i = 0; i < event_cache::idle_max; ++i) static_cast<void>(event_cache::take(0));
}
#endif

}  // namespace
}  // namespace escrow::test
