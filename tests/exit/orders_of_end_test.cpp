// Lease, pool, deleter, graph, exec and stream are destroyed in all 720 orders while a launch is in
// flight, on threads at once, and after cudaDeviceReset. No destructor waits for the launch,
// nothing is released while the launch may use it, and everything is released once after it.
#include <algorithm>
#include <array>
#include <escrow/graph.hpp>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "../deleter/probe.hpp"
#include "../pool/pool_fixture.hpp"
#include "../support/child_cases.hpp"

#ifdef ESCROW_TEST_RUNTIME_SIM
#include <escrow/sim.hpp>
#endif

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

/// All six: a graph that waits for `gate` and holds a slot of the pool and an owner; its exec, in
/// flight on the stream; and, behind that, work on a lease of the same pool and an owner that was
/// retired eagerly. Wrong values that the kernels read are counted in `mismatches`. All arguments
/// must outlive the work.
class six_things {
 public:
  six_things(exec_kind kind, pinned_ints& gate, pinned_ints& mismatches, cudaStream_t other)
      : other_(other), stream_(make_stream()), deleter_(std::make_unique<deleter>()) {
    // Counted before cudaFree, which would wait for work that still uses the resource.
    pool_ = std::make_unique<block_pool>(
        pool_options{.slots_max = 4, .deleter = deleter_.get()},
        [counts = counts_] { return block{*counts}; }, block_pool::recycle_function{},
        [ended = ended_](block&) { ended->fetch_add(1, std::memory_order_relaxed); });
    graph_.emplace(escrow::capture(stream_.get(), [&](stream_ref on) {
      must(launch_wait_flag(on.get(), gate.data()));
      block_lease held = pool_->claim(on);
      fill(held, on.get(), 1);
      check(held, on.get(), 1, mismatches);
      deleter_->retire(on, probe(captured_));
    }));
    if (kind == exec_kind::bare) {
      bare_.emplace(*graph_).launch(stream_.get());
    } else {
      plain_ = instantiate(graph_->get());
      must(cudaGraphLaunch(plain_, stream_));
    }
    lease_.emplace(pool_->claim(stream_.get()));
    fill(*lease_, stream_, 2);
    check(*lease_, stream_, 2, mismatches);
    deleter_->retire(stream_ref(stream_.get()), probe(retired_));
  }

  /// Destroys one of them, as its contract allows: a lease whose stream is about to be destroyed is
  /// released on another, which was ordered behind that.
  void end(thing which) {
    switch (which) {
      case thing::lease:
        if (stream_.get() == nullptr) lease_->release(other_);
        return lease_.reset();
      case thing::pool:
        return pool_.reset();
      case thing::deleter:
        return deleter_.reset();
      case thing::graph:
        return graph_.reset();
      case thing::exec:
        if (bare_) return bare_.reset();
        {
          graph_lifetime_lock const lock;  // another thread may destroy the graph
          return plain_.reset();
        }
      case thing::stream:
        if (lease_) order_other_behind();
        return stream_.reset();
    }
  }

  /// How many resources and owners were released: two slots and two owners in all.
  [[nodiscard]] int released() const {
    return ended_->load(std::memory_order_relaxed) + captured_->times() + retired_->times();
  }
  [[nodiscard]] bool are_all_released_once() const {
    return counts_->alive() == 0 && counts_->destroyed.load(std::memory_order_acquire) == 2 &&
           released() == 4 && captured_->times() == 1 && retired_->times() == 1;
  }
  [[nodiscard]] bool is_one_released_twice() const {
    return counts_->alive() < 0 || captured_->times() > 1 || retired_->times() > 1;
  }

 private:
  void order_other_behind() {
    owned_event const reached = make_event();
    must(cudaEventRecord(reached, stream_));
    must(cudaStreamWaitEvent(other_, reached));
  }

  cudaStream_t other_;
  // Shared, so that a resource that is destroyed too late, or twice, still finds them.
  std::shared_ptr<tally> counts_ = std::make_shared<tally>();
  std::shared_ptr<std::atomic<int>> ended_ = std::make_shared<std::atomic<int>>(0);
  fate_ptr captured_ = make_fate();
  fate_ptr retired_ = make_fate();

  owned_stream stream_;
  std::unique_ptr<deleter> deleter_;
  std::unique_ptr<block_pool> pool_;
  std::optional<graph> graph_;
  std::optional<graph_exec> bare_;
  owned_exec plain_;
  std::optional<block_lease> lease_;
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
  template <class End>
  void expect_all_released_after_the_launch(End end) {
    gate.store(0, 0);
    six_things alive(GetParam(), gate, mismatches, other);
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
  pinned_ints mismatches;
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
  EXPECT_EQ(mismatches.load(), 0);
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
  EXPECT_EQ(mismatches.load(), 0);
}

INSTANTIATE_TEST_SUITE_P(Exec, OrdersOfEnd, testing::Values(exec_kind::bare, exec_kind::plain),
                         [](auto const& which) {
                           return which.param == exec_kind::bare ? "Bare" : "Plain";
                         });

void reset_after_all_is_destroyed() {
  {
    pinned_ints gate;
    gate.store(0, 1);
    pinned_ints mismatches;
    owned_stream const other = make_stream();
    six_things alive(exec_kind::bare, gate, mismatches, other);
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
  pinned_ints mismatches;
  owned_stream other = make_stream();
  // Polled, so that it first looks after the reset. Never destroyed, as what it leaks.
  static deleter& polled = *new deleter(deleter_options{.own_worker = false});
  six_things alive(exec_kind::bare, gate, mismatches, other);
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
  for (thing each : all_things) {
    if (each != first) alive.end(each);
  }
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
