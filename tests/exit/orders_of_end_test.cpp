// Lease, pool, deleter, graph, exec and stream end in all 720 orders while a launch is in flight:
// no end waits for it, nothing goes while the launch may use it, and everything goes once after it.
#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "six_things.hpp"

#ifdef ESCROW_TEST_RUNTIME_SIM
#include <escrow/sim.hpp>
#endif

namespace escrow::test {
namespace {

using clock = std::chrono::steady_clock;

/// What CUDA still has of graphs; empty where it cannot be asked.
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

  void expect_clean_end(std::array<thing, 6> const& order) {
    gate.store(0, 0);
    six_things alive(GetParam(), gate, mismatches, other);
    auto const begin = clock::now();
    for (thing each : order) alive.end(each);
    auto const took = clock::now() - begin;
    EXPECT_LT(took, generous);  // the launch itself goes on until the gate opens
    std::this_thread::sleep_for(std::chrono::milliseconds{1});  // the worker is awake: it would act
    EXPECT_EQ(alive.gone(), 0) << "gone while the launch was in flight";
    gate.store(0, 1);
    EXPECT_TRUE(wait_until([&] { return alive.are_all_gone_once(); })) << alive.gone() << " of 4";
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
    for (thing each : order) text += std::string{name_of(each)} + " ";
    SCOPED_TRACE(text);
    expect_clean_end(order);
    ++orders;
  } while (std::next_permutation(order.begin(), order.end()) && !HasFailure());
  EXPECT_EQ(orders, 720);
  EXPECT_EQ(mismatches.load(), 0);
  EXPECT_TRUE(wait_until([&] { return graph_objects_alive() == before; }));
}

TEST_P(OrdersOfEnd, AreAllTheSameToThreadsThatEndEverythingAtOnce) {
  constexpr int rounds = 200;
  for (int round = 0; round < rounds && !HasFailure(); ++round) {
    gate.store(0, 0);
    six_things alive(GetParam(), gate, mismatches, other);
    std::atomic<bool> go{false};
    std::vector<std::thread> threads;
    auto const add = [&](std::vector<thing> which) {
      threads.emplace_back([&, its = std::move(which)] {
        while (!go.load(std::memory_order_acquire)) std::this_thread::yield();
        for (thing each : its) alive.end(each);
      });
    };
    add({thing::lease, thing::stream});  // in this order: the lease ends on the stream
    add({thing::pool});
    add({thing::deleter});
    add({thing::graph});
    add({thing::exec});
    go.store(true, std::memory_order_release);
    for (std::thread& each : threads) each.join();
    EXPECT_EQ(alive.gone(), 0) << "gone while the launch was in flight";
    gate.store(0, 1);
    EXPECT_TRUE(wait_until([&] { return alive.are_all_gone_once(); })) << alive.gone() << " of 4";
    open_gate();
  }
  EXPECT_EQ(mismatches.load(), 0);
}

INSTANTIATE_TEST_SUITE_P(Exec, OrdersOfEnd, testing::Values(exec_kind::bare, exec_kind::plain),
                         [](auto const& which) {
                           return which.param == exec_kind::bare ? "Bare" : "Plain";
                         });

}  // namespace
}  // namespace escrow::test
