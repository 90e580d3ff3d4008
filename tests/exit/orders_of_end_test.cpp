// SPDX-License-Identifier: Apache-2.0
// Lease, pool, deleter, graph, exec and stream are destroyed in all 720 orders while a launch is in
// flight, on threads at once, and after cudaDeviceReset. No destructor waits for the launch,
// nothing is released while the launch may use it, and everything is released once after it.
#include <algorithm>

#include "belongings.hpp"

namespace escrow::test {
namespace {

enum class thing { lease, pool, deleter, graph, exec, stream };

constexpr std::array all_things{thing::lease, thing::pool, thing::deleter,
                                thing::graph, thing::exec, thing::stream};

[[nodiscard]] std::string name_of(thing each) {
  constexpr std::array names{"lease", "pool", "deleter", "graph", "exec", "stream"};
  return names[static_cast<std::size_t>(each)];
}

enum class exec_kind { bare, plain };

/// All six: the graph waits for `gate`, its exec is in flight on the stream, and behind it are work
/// on the lease and an owner that was retired eagerly.
class six_things : private belongings {
 public:
  six_things(exec_kind kind, pinned_ints& gate, cudaStream_t after)
      : belongings(wait_flag_call(gate.data())), other_(after) {
    if (kind == exec_kind::plain) {
      exec.reset();
      plain_ = instantiate(source.get());
      must(cudaGraphLaunch(plain_, stream));
      fill(*held, stream, 2);
    } else {
      launch();
    }
    retire(behind);
  }

  /// Destroys one of them, as its contract allows: a lease whose stream is about to be destroyed is
  /// released on another, which was ordered behind that.
  void end(thing which) {
    switch (which) {
      case thing::lease:
        if (stream.get() == nullptr) held->release(other_);
        return held.reset();
      case thing::pool:
        return pool.reset();
      case thing::deleter:
        return own.reset();
      case thing::graph:
        source = graph();
        return;
      case thing::exec:
        if (exec) return exec.reset();
        {
          graph_lifetime_lock const lock;  // another thread may destroy the graph
          return plain_.reset();
        }
      case thing::stream:
        if (held) order(stream, other_);
        return stream.reset();
    }
  }

  /// How many resources and owners were released: two slots and two owners in all.
  [[nodiscard]] int released() const {
    return slots_destroyed->load(std::memory_order_relaxed) + in_graph->times() + behind->times();
  }
  [[nodiscard]] bool are_all_released_once() const {
    return counts->alive() == 0 && counts->destroyed.load(std::memory_order_acquire) == 2 &&
           released() == 4 && in_graph->times() == 1 && behind->times() == 1;
  }
  [[nodiscard]] bool is_one_released_twice() const {
    return counts->alive() < 0 || in_graph->times() > 1 || behind->times() > 1;
  }

 private:
  cudaStream_t other_;
  owned_exec plain_;
};

/// What CUDA still has of graphs; 0 where it cannot be asked.
[[nodiscard]] std::size_t graph_objects_alive() {
#ifdef ESCROW_TEST_RUNTIME_SIM
  sim::counts const now = sim::alive();
  return now.graphs + now.execs + now.execs_in_flight + now.user_objects + now.streams;
#else
  return 0;
#endif
}

class OrdersOfEnd : public testing::TestWithParam<exec_kind> {
 protected:
  ~OrdersOfEnd() override { open_gate(); }

  void open_gate() {
    gate.store(0, 1);
    sync(other);
    must(cudaDeviceSynchronize());
  }

  /// `end` destroys all six while the launch is in flight.
  void expect_all_released_after_the_launch(auto end) {
    gate.store(0, 0);
    six_things alive(GetParam(), gate, other);
    auto const begin = std::chrono::steady_clock::now();
    end(alive);
    // The launch itself goes on until the gate opens.
    EXPECT_LT(std::chrono::steady_clock::now() - begin, generous);
    std::this_thread::sleep_for(std::chrono::milliseconds{1});  // the worker is awake: it would act
    EXPECT_EQ(alive.released(), 0) << "released while the launch was in flight";
    gate.store(0, 1);
    EXPECT_TRUE(wait_until([&] { return alive.are_all_released_once(); }))
        << alive.released() << " of 4";
    open_gate();
  }

  pinned_ints gate;
  owned_stream other = make_stream();
};

TEST_P(OrdersOfEnd, AreAllBoundedAndDestroyEverythingOnceAfterTheLaunch) {
  std::size_t const before = graph_objects_alive();
  std::array<thing, 6> order = all_things;
  int orders = 0;
  do {
    std::string text;
    for (thing each : order) text += name_of(each) + " ";
    SCOPED_TRACE(text);
    expect_all_released_after_the_launch([&](six_things& alive) {
      for (thing each : order) alive.end(each);
    });
    ++orders;
  } while (std::next_permutation(order.begin(), order.end()) && !HasFailure());
  EXPECT_EQ(orders, 720);
  EXPECT_TRUE(wait_until([&] { return graph_objects_alive() == before; }));
}

TEST_P(OrdersOfEnd, AreAllTheSameToThreadsThatEndEverythingAtOnce) {
  // In this order: the lease is released on the stream.
  std::vector<std::vector<thing>> const shares{{thing::lease, thing::stream},
                                               {thing::pool},
                                               {thing::deleter},
                                               {thing::graph},
                                               {thing::exec}};
  constexpr int rounds = 200;
  for (int round = 0; round < rounds && !HasFailure(); ++round) {
    expect_all_released_after_the_launch([&](six_things& alive) {
      std::atomic<bool> go{false};
      std::vector<std::jthread> threads;
      for (std::vector<thing> const& share : shares) {
        threads.emplace_back([&alive, &go, &share] {
          while (!go.load(std::memory_order_acquire)) std::this_thread::yield();
          for (thing each : share) alive.end(each);
        });
      }
      go.store(true, std::memory_order_release);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Exec, OrdersOfEnd, testing::Values(exec_kind::bare, exec_kind::plain),
                         [](auto const& which) {
                           return which.param == exec_kind::bare ? "Bare" : "Plain";
                         });

void reset_after_all_is_destroyed() {
  {
    pinned_ints gate;
    gate.store(0, 1);
    owned_stream const other = make_stream();
    six_things alive(exec_kind::bare, gate, other);
    for (thing each : all_things) alive.end(each);
    must(wait_until([&] { return alive.are_all_released_once(); }), "all is destroyed");
    deleter::global().retire(stream_ref(other.get()), probe(make_fate()));
    deleter::global().drain();
    must(cudaDeviceSynchronize());
  }
  must(cudaDeviceReset());
  owned_stream const stream = make_stream();
  must(launch_tiny(stream));
  must(cudaStreamSynchronize(stream));  // the global deleter is left to the end of the process
}

// Not on a GPU: CUDA does not define what a call does with a handle from before the reset, and
// calls were seen to crash. The simulated runtime says cudaErrorInvalidResourceHandle.
void reset_with_everything_alive(thing first) {
  pinned_ints gate;
  owned_stream other = make_stream();
  // Polled, so that it first looks after the reset. Never destroyed, as what it leaks.
  static deleter& polled = *new deleter(deleter_options{.own_worker = false});
  six_things alive(exec_kind::bare, gate, other);
  fate_ptr const after_event = make_fate();
  fate_ptr const after_stream = make_fate();
  owned_event ready = make_event();
  must(launch_wait_flag(other, gate.data()));
  must(cudaEventRecord(ready, other));
  polled.retire_after(ready.get(), probe(after_event));
  for (int i = 0; i < 3; ++i) polled.retire(stream_ref(other.get()), probe(after_stream));
  std::jthread opening([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds{5});
    gate.store(0, 1);  // the reset waits for the device
  });
  must(cudaDeviceReset());
  opening.join();
  alive.end(first);
  for (thing each : all_things)
    if (each != first) alive.end(each);
  must(polled.drain_for(generous), "a drain ends");
  must(!after_event->was_destroyed() && !after_stream->was_destroyed(), "the work is unknown");
  must(polled.stats().leaked == 4, "what was pending is leaked, and counted");
  must(polled.stats().pending == 0, "a destroyed event is not queried again");
  must(polled.stats().errors == 4, "each was reported");
  must(stays_false([&] { return alive.is_one_released_twice(); }), "nothing is destroyed twice");
  static_cast<void>(ready.release());
  static_cast<void>(other.release());
}

std::vector<named_case> all_resets() {
  std::vector<named_case> all{{"AfterAllIsDestroyed", &reset_after_all_is_destroyed}};
  for (thing first : all_things) {
    if (!is_simulated() || first == thing::stream) continue;  // the stream is the caller's
    all.emplace_back("WithEverythingAlive_" + name_of(first) + "_first",
                     [first] { reset_with_everything_alive(first); });
  }
  return all;
}

std::vector<named_case> const resets = register_cases(all_resets());

using DeviceReset = child_test;

TEST_P(DeviceReset, LeavesEveryDestructorBounded) {
  expect_clean_end(GetParam());
}

INSTANTIATE_TEST_SUITE_P(Device, DeviceReset, testing::ValuesIn(resets), &name_of_case);

}  // namespace
}  // namespace escrow::test
