// SPDX-License-Identifier: Apache-2.0
// A deleter, its worker and their end: the library's own objects. And the gate and the lock in it.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <set>
#include <string>
#include <thread>

#include "escrow/deleter/deleter.hpp"
#include "escrow/internal/spin_lock.hpp"
#include "escrow/internal/wakeup.hpp"
#include "expect_fine.hpp"
#include "system.hpp"

namespace escrow::model {

void have_work_that_outlasts(int questions);  // in no_device.cpp

namespace {

// An owner that counts its end in plain memory.
struct count_end {
  void operator()(int* ended) const { ++*ended; }
};
using witness = std::unique_ptr<int, count_end>;

// What threads push that the deleter does not wait for, as destroy callbacks.
struct late_one final : reclaimable {
  explicit late_one(deleter_core& core, int& to)
      : reclaimable(core, release_lane::destroy, -1,
                    [](reclaimable& it) noexcept { delete static_cast<late_one*>(&it); }),
        ended(&to) {}
  ~late_one() { ++*ended; }
  int* ended;
};

struct one_deleter {
  [[nodiscard]] late_one* make(int i) { return new late_one(owner->core(), ended[i]); }
  void require_each_ended_once() const {
    require(ended[0] == 1 && ended[1] == 1, "not each was reclaimed once");
  }

  // Without a linger, so that the worker sleeps as soon as it can.
  std::unique_ptr<deleter> owner =
      std::make_unique<deleter>(deleter_options{.linger = std::chrono::microseconds(0)});
  std::atomic<int> threads{2};
  int ended[2] = {0, 0};
};

stream_ref const some_stream{reinterpret_cast<cudaStream_t>(std::uintptr_t{112})};

// Two threads retire; the last one ends the deleter, whose worker goes on by itself or is joined.
void retire_and_leave(world& all) {
  auto& shared = all.make<one_deleter>("test");
  for (int i = 0; i < 2; ++i) {
    all.thread("retirer " + std::to_string(i), [&shared, i] {
      witness owner(&shared.ended[i]);
      if (i == 0) {
        shared.owner->retire(std::move(owner));
      } else {
        shared.owner->retire(some_stream, std::move(owner));
      }
      if (shared.threads.fetch_sub(1, std::memory_order_acq_rel) == 1) shared.owner.reset();
    });
  }
  all.at_end([&shared] { shared.require_each_ended_once(); });
}

TEST(Deleter, DestroysEachOwnerAndItsCoreLastInManyExecutions) {
  expect_fine({.name = "two retire, the deleter ends", .random = executions(1'500)},
              retire_and_leave);
}

// A thread polls, and may take from the queue what the worker was notified of.
void poll_beside_the_worker(world& all) {
  auto& shared = all.make<one_deleter>("test");
  have_work_that_outlasts(1);
  all.thread("retirer", [&shared] {
    shared.owner->retire(some_stream, witness(&shared.ended[0]));
    shared.owner->poll();
  });
  all.at_end([&shared] { require(shared.ended[0] == 1, "no thread looks at what is pending"); });
}

TEST(Deleter, DoesNotForgetWhatAnotherThreadsPassLeavesPending) {
  expect_fine({.name = "a thread polls beside the worker",
               .random = executions(1'500),
               .workers_may_sleep = true},
              poll_beside_the_worker);
}

void push_while_the_deleter_ends(world& all) {
  auto& shared = all.make<one_deleter>("test");
  for (int i = 0; i < 2; ++i) {
    late_one* const mine = shared.make(i);
    all.thread("callback " + std::to_string(i), [mine] { mine->push(); });
  }
  all.thread("owner", [&shared] { shared.owner.reset(); });
  all.at_end([&shared] { shared.require_each_ended_once(); });
}

TEST(Deleter, IsNotTouchedByAThreadAfterItsLastPush) {
  expect_fine({.name = "two push, the deleter ends", .random = executions(1'500)},
              push_while_the_deleter_ends);
}

// The reclaimable's use of the core is dropped by another thread.
void drop_while_the_deleter_ends(world& all) {
  auto& shared = all.make<one_deleter>("test");
  all.thread("user", [mine = shared.make(0)] { delete mine; });
  all.thread("owner", [&shared] { shared.owner.reset(); });
}

TEST(Deleter, IsDestroyedAfterAllThatIsDoneWithItsCore) {
  expect_fine({.name = "a use is dropped, the deleter ends", .random = executions(1'500)},
              drop_while_the_deleter_ends);
}

// The exit handler, while the worker is in a pass: once it has returned nothing is reclaimed.
struct exiting : one_deleter {
  bool has_exited = false;  // plain: a pass that could see it change would race
};
struct require_no_exit {
  void operator()(exiting* seen) const {
    require(!seen->has_exited, "an owner was destroyed after the exit");
  }
};

void exit_beside_a_pass(world& all) {
  auto& shared = all.make<exiting>("test");
  all.thread("retirer", [&shared] {
    shared.owner->retire(std::unique_ptr<exiting, require_no_exit>(&shared));
  });
  all.thread("exit", [&shared] {
    exit_handler()();
    shared.has_exited = true;
  });
}

TEST(Deleter, ReclaimsNothingAfterTheExitHandlerHasReturned) {
  expect_fine({.name = "the process exits beside a pass",
               .random = executions(1'500),
               .workers_may_sleep = true},
              exit_beside_a_pass);
}

constexpr auto relaxed = std::memory_order_relaxed;

TEST(PlantedInTheDeleter, ARelaxedDropOfTheLastUseIsFound) {
  options const how{.name = "drop_use", .random = 5'000};
  EXPECT_TRUE(finds_planted(how, drop_while_the_deleter_ends, "drop_one", std::memory_order_acq_rel,
                            std::memory_order_acquire));
  EXPECT_TRUE(finds_planted(how, drop_while_the_deleter_ends, "deleter_core::run_worker",
                            std::memory_order_acquire, relaxed));
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

TEST(ShutdownGate, KeepsPassesAndTheEndApartWhateverThreadsDo) {
  expect_fine({.name = "shutdown gate: 2 passes, 1 end"}, pass_beside_the_end);
}

TEST(PlantedInTheShutdownGate, WeakerOrdersAreFound) {
  std::set<std::string> found;
  for (planted const& each : plant_each({.name = "gate"}, pass_beside_the_end)) {
    print(each);
    if (!each.found.error.empty()) found.insert(each.bug.at.function + " " + name_of(each.bug.to));
  }
  for (char const* const weaker :
       {"try_enter acq_rel", "close acq_rel", "is_empty acq_rel", "leave relaxed"}) {
    EXPECT_TRUE(found.contains(std::string("shutdown_gate::") + weaker)) << weaker;
  }
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
  EXPECT_TRUE(finds_planted({.name = "try_lock"}, contend(2), "spin_lock::try_lock",
                            std::memory_order_acquire, relaxed));
  EXPECT_TRUE(finds_planted({.name = "unlock"}, contend(2), "spin_lock::unlock",
                            std::memory_order_release, relaxed));
}

}  // namespace
}  // namespace escrow::model
