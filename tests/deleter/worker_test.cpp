// The worker: two lanes, so that recycling never waits behind a destroy that blocks, each with a
// queue; which CUDA calls retiring and passes make, and what passes make of answers that fail.
#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "release_queue.hpp"
#include "world.hpp"

#ifdef ESCROW_TEST_RUNTIME_SIM
#include <escrow/deleter/shared_object.hpp>
#include <escrow/detail/ready_event.hpp>
#include <escrow/sim.hpp>

#include "allocation_watch.hpp"
#include "child.hpp"
#endif

namespace escrow::test {
namespace {

// Counts how often it was recycled.
struct counted final : reclaimable {
  explicit counted(deleter_core& core)
      : reclaimable(core, release_lane::recycle, -1, [](reclaimable& thing) noexcept {
          auto& it = static_cast<counted&>(thing);
          it.thread = std::this_thread::get_id();
          it.reclaimed.fetch_add(1, std::memory_order_release);
        }) {}
  [[nodiscard]] int times() const { return reclaimed.load(std::memory_order_acquire); }

  std::thread::id thread;
  std::atomic<int> reclaimed{0};
};

using Lanes = world;

TEST_F(Lanes, AnyThreadRecyclesWhileADestroyBlocksTheWorker) {
  std::deque<counted> slots;
  std::vector<fate_ptr> fates;
  block_worker();
  for (int i = 0; i < 1000; ++i) {
    slots.emplace_back(worker->core()).push();
    worker->retire(probe(fates.emplace_back(make_fate())));
  }
  EXPECT_FALSE(drains_soon());
  worker->core().recycle();
  for (counted const& each : slots) {
    EXPECT_EQ(each.times(), 1);
    EXPECT_EQ(each.thread, std::this_thread::get_id());
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

// The queue alone. The model checker explores it with one place for each thing; here, places are
// reserved meanwhile and used again.

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

#ifdef ESCROW_TEST_RUNTIME_SIM
// In a process of its own, since the tests below use both devices.
child_case const uses_one_device{"uses_one_device", [] {
                                   must(cudaSetDevice(1));
                                   owned_stream const stream = make_stream();
                                   deleter its;
                                   its.retire(stream, std::make_unique<int>(1));
                                   its.drain();
                                   must(sim::has_context(1), "the device is in use");
                                   return sim::has_context(0) ? 1 : 42;
                                 }};

TEST(WorkerContext, IsOfTheDeviceOfWhatItReclaims) {
  child_result const child = run_child("uses_one_device");
  EXPECT_EQ(child.status, 42) << child.output;
}

// A deleter without a worker: each pass is a call of poll().
class Passes : public world {
 protected:
  deleter its{deleter_options{.own_worker = false}};
};

class RetireOnTwoDevices : public world_of_two_devices {};

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
      its.retire(one, 1);
      its.retire(far.back(), 1);
    }
    sync(one);
    sync(far.back());
    while (its.poll() != 0) continue;
  };
  for (int i = 0; i < 20; ++i) round();
  auto const made_before = sim::calls("cudaEventCreateWithFlags");
  auto const destroyed_before = sim::calls("cudaEventDestroy");
  for (int i = 0; i < 50; ++i) round();
  EXPECT_EQ(sim::calls("cudaEventCreateWithFlags"), made_before);
  EXPECT_EQ(sim::calls("cudaEventDestroy"), destroyed_before);
}

TEST_F(Passes, AskAboutTheOldestRetirementOfEachStreamAlone) {
  constexpr std::uint64_t count = 64;
  std::vector<owned_stream> streams;
  hold_up(one);
  while (streams.size() < count) order(one, streams.emplace_back(make_stream()));
  for (int i = 0; i < 4; ++i) {
    for (auto const& each : streams) its.retire(each, 1);
  }
  auto const before = sim::calls("cudaEventQuery");
  EXPECT_EQ(its.poll(), 0U);
  EXPECT_LE(sim::calls("cudaEventQuery") - before, count);
  flag.raise();
  its.drain();
}

// The last retirement of a stream is asked about first, since its answer saves the other questions.
TEST_F(Passes, LeaveThePollingThreadsLastErrorAloneWhenAQueryFails) {
  for (int i = 0; i < 3; ++i) its.retire(one, 1);
  sync(one);
  sim::fail_call_here("cudaEventQuery", cudaErrorUnknown, 2, 1);
  EXPECT_EQ(its.poll(), 3U);
  sim::clear_faults();
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
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
        its.retire(one, i);
        its.retire(i);
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
