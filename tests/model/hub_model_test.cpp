// The hub, its worker and their end: the library's own objects, with a device that is always done.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <set>
#include <string>
#include <thread>

#include "escrow/deleter/deleter.hpp"
#include "escrow/detail/spin_lock.hpp"
#include "expect_fine.hpp"
#include "model_atomic.hpp"
#include "no_device.hpp"
#include "shutdown_gate.hpp"
#include "system.hpp"
#include "wakeup.hpp"

namespace escrow::model {
namespace {

// Writes down that it is destroyed, in plain memory.
struct witness {
  explicit witness(int& to) : ended(&to) {}
  ~witness() { ++*ended; }
  int* ended;
};

struct owned_by_a_deleter {
  std::unique_ptr<deleter> owner;
  std::atomic<int> threads{2};
  int ended[2] = {0, 0};
};

deleter_options quick() {
  return {.linger = std::chrono::microseconds(0)};
}

cudaStream_t stream_number(std::uintptr_t number) {
  return reinterpret_cast<cudaStream_t>(number * 16);
}

// Two threads retire; the last one ends the deleter, whose worker goes on by itself or is joined.
void retire_and_leave(world& all) {
  auto& shared = all.make<owned_by_a_deleter>("test");
  shared.owner = std::make_unique<deleter>(quick());
  for (int i = 0; i < 2; ++i) {
    all.thread("retirer " + std::to_string(i), [&shared, i] {
      auto owner = std::make_unique<witness>(shared.ended[i]);
      if (i == 0) {
        shared.owner->retire(std::move(owner));
      } else {
        shared.owner->retire(stream_ref(stream_number(7)), std::move(owner));
      }
      if (shared.threads.fetch_sub(1, std::memory_order_acq_rel) == 1) shared.owner.reset();
    });
  }
  all.at_end([&shared] {
    require(shared.ended[0] == 1 && shared.ended[1] == 1, "an owner was not destroyed once");
  });
}

TEST(Hub, EveryOwnerIsDestroyedAndTheHubGoesLastInManyExecutions) {
  expect_fine({.name = "two retire, the deleter ends", .random = executions(1'500)},
              retire_and_leave);
}

// A thread polls, and may take from the queue what the worker was rung for.
void poll_beside_the_worker(world& all) {
  auto& shared = all.make<owned_by_a_deleter>("test");
  shared.owner = std::make_unique<deleter>(quick());
  have_work_that_outlasts(1);
  all.thread("retirer", [&shared] {
    shared.owner->retire(stream_ref(stream_number(7)), std::make_unique<witness>(shared.ended[0]));
    shared.owner->poll();
  });
  all.at_end([&shared] { require(shared.ended[0] == 1, "nobody looks at what is pending"); });
}

TEST(Hub, WhatAnotherThreadsPassLeavesPendingIsNotForgotten) {
  expect_fine({.name = "a thread polls beside the worker",
               .random = executions(1'500),
               .workers_may_sleep = true},
              poll_beside_the_worker);
}

// A node that is pushed from a thread which the deleter does not wait for, as a destroy callback.
struct late_node final : reclaimable {
  explicit late_node(deleter_core& hub, int& to)
      : reclaimable(hub, release_lane::destroy, -1,
                    [](reclaimable& node) noexcept { delete static_cast<late_node*>(&node); }),
        ended(&to) {}
  ~late_node() { ++*ended; }
  int* ended;
};

struct owned_with_nodes {
  std::unique_ptr<deleter> owner;
  late_node* nodes[2] = {};
  int ended[2] = {0, 0};
};

void push_while_the_deleter_ends(world& all) {
  auto& shared = all.make<owned_with_nodes>("test");
  shared.owner = std::make_unique<deleter>(quick());
  for (int i = 0; i < 2; ++i) {
    shared.nodes[i] = new late_node(shared.owner->core(), shared.ended[i]);
    all.thread("callback " + std::to_string(i), [&shared, i] { shared.nodes[i]->push(); });
  }
  all.thread("owner", [&shared] { shared.owner.reset(); });
  all.at_end([&shared] {
    require(shared.ended[0] == 1 && shared.ended[1] == 1, "a node was not reclaimed once");
  });
}

TEST(Hub, APusherNeverTouchesTheHubAfterItsLastPush) {
  expect_fine({.name = "two push, the deleter ends", .random = executions(1'500)},
              push_while_the_deleter_ends);
}

// A node that is never pushed, and whose use of the hub another thread drops.
void drop_while_the_deleter_ends(world& all) {
  auto& shared = all.make<owned_with_nodes>("test");
  shared.owner = std::make_unique<deleter>(quick());
  shared.nodes[0] = new late_node(shared.owner->core(), shared.ended[0]);
  all.thread("user", [&shared] { delete shared.nodes[0]; });
  all.thread("owner", [&shared] { shared.owner.reset(); });
}

TEST(Hub, WhatIsDoneWithItHappensBeforeItsEnd) {
  expect_fine({.name = "a use is dropped, the deleter ends", .random = executions(1'500)},
              drop_while_the_deleter_ends);
}

// The exit handler, while the worker is in a pass: once it has returned nothing is reclaimed.
struct exiting {
  std::unique_ptr<deleter> owner;
  bool has_exited = false;  // plain: a pass that could see it change would race
};

struct sees_exit {
  explicit sees_exit(exiting& from) : seen(&from) {}
  ~sees_exit() {
    if (seen != nullptr) require(!seen->has_exited, "an owner was destroyed after the exit");
  }
  exiting* seen;
};

void exit_beside_a_pass(world& all) {
  auto& shared = all.make<exiting>("test");
  shared.owner = std::make_unique<deleter>(quick());
  all.thread("retirer", [&shared] { shared.owner->retire(std::make_unique<sees_exit>(shared)); });
  all.thread("exit", [&shared] {
    exit_handler()();
    shared.has_exited = true;
  });
}

TEST(Hub, NothingIsReclaimedAfterTheExitHandlerHasReturned) {
  expect_fine({.name = "the process exits beside a pass",
               .random = executions(1'500),
               .workers_may_sleep = true},
              exit_beside_a_pass);
}

constexpr auto relaxed = std::memory_order_relaxed;

TEST(PlantedInTheHub, ARelaxedDropOfTheLastUseIsFound) {
  EXPECT_TRUE(finds_planted({.name = "drop_use", .random = 5'000}, drop_while_the_deleter_ends,
                            "deleter_core::drop_use", std::memory_order_release, relaxed));
  EXPECT_TRUE(finds_planted({.name = "work", .random = 5'000}, drop_while_the_deleter_ends,
                            "worker::run", std::memory_order_acquire, relaxed));
}

// The gate alone: a pass writes what it destroys, the end of the process what it takes down.
struct gated {
  shutdown_gate gate;
  int used = 0;
};

void pass_beside_the_end(world& all) {
  auto& shared = all.make<gated>("gate");
  for (int i = 0; i < 2; ++i) {
    all.thread("pass " + std::to_string(i), [&shared, i] {
      if (!shared.gate.try_enter()) return;
      if (i == 0) ++shared.used;
      shared.gate.leave();
    });
  }
  all.thread("exit", [&shared] {
    shared.gate.close();
    while (!shared.gate.is_empty()) std::this_thread::yield();
    ++shared.used;
  });
}

TEST(PassGate, KeepsPassesAndTheEndApartWhateverThreadsDo) {
  expect_fine({.name = "pass gate: 2 passes, 1 end"}, pass_beside_the_end);
}

TEST(PlantedInThePassGate, WeakerOrdersAreFound) {
  std::set<std::string> found;
  for (planted const& each : plant_each({.name = "gate"}, pass_beside_the_end)) {
    print(each);
    if (!each.found.error.empty()) {
      found.insert(each.bug.at.function + " " + name_of(each.bug.to));
    }
  }
  EXPECT_TRUE(found.contains("shutdown_gate::try_enter acq_rel"));
  EXPECT_TRUE(found.contains("shutdown_gate::close acq_rel"));
  EXPECT_TRUE(found.contains("shutdown_gate::is_empty acq_rel"));
  EXPECT_TRUE(found.contains("shutdown_gate::leave relaxed"));
}

// Planted: what drop_use() must not do.
struct small_hub {
  std::atomic<int> uses{1};
  basic_wakeup<bare_atomic>* bell = nullptr;
};

TEST(PlantedInTheHub, TouchingItAfterTheLastUseIsFound) {
  auto const with = [](bool takes_bell_first) {
    return [takes_bell_first](world& all) {
      auto& bell = all.make<basic_wakeup<bare_atomic>>("bell");
      auto* const hub = new small_hub;
      hub->bell = &bell;
      all.call(hub, sizeof(*hub), "hub");
      all.thread("user", [hub, takes_bell_first] {
        basic_wakeup<bare_atomic>& first = *hub->bell;
        hub->uses.fetch_sub(1, std::memory_order_release);
        (takes_bell_first ? first : *hub->bell).notify();
      });
      all.thread("worker", [hub] {
        auto& own = *hub->bell;
        auto const is_used = [hub] { return hub->uses.load(std::memory_order_acquire) != 0; };
        while (is_used()) {
          if (own.try_sleep(is_used)) own.wait_for_notify();
        }
        delete hub;
      });
    };
  };
  expect_fine({.name = "a hub of one use"}, with(true));
  options const how{.name = "planted: the bell is looked for in the hub"};
  report const result = explore(how, with(false));
  print(how, result);
  EXPECT_NE(result.error, "");
}

struct locked {
  spin_lock lock;
  int value = 0;
};

program contend(int threads) {
  return [threads](world& all) {
    auto& shared = all.make<locked>("counter");
    for (int i = 0; i < threads; ++i) {
      all.thread("thread " + std::to_string(i), [&shared] {
        for (int round = 0; round < 2; ++round) {
          std::lock_guard const held(shared.lock);
          ++shared.value;
        }
      });
    }
    all.at_end([&shared, threads] {
      require(shared.value == 2 * threads, "two were in the lock at a time");
    });
  };
}

TEST(SpinLock, LetsOneInAtATimeWhateverThreadsDo) {
  expect_fine({.name = "spin lock: 2 threads x 2"}, contend(2));
  if (is_deep()) expect_fine({.name = "spin lock: 3 threads x 2"}, contend(3));
  expect_fine({.name = "spin lock: 3 threads x 2", .random = executions(5'000)}, contend(3));
}

TEST(PlantedInTheSpinLock, WeakerOrdersAreFound) {
  for (char const* const function : {"spin_lock::try_lock", "spin_lock::unlock"}) {
    bool const is_lock = std::string(function).ends_with("try_lock");
    EXPECT_TRUE(finds_planted({.name = function}, contend(2), function,
                              is_lock ? std::memory_order_acquire : std::memory_order_release,
                              relaxed));
  }
}

}  // namespace
}  // namespace escrow::model
