// Eight threads capture, clone, nest, instantiate, launch, update, hoist and destroy at random,
// with every slot and owner watched: no slot in two hands, no two launches of it at a time, no
// owner destroyed early, twice or never. ESCROW_STRESS_SECONDS makes it last longer,
// ESCROW_STRESS_SEED repeats a choice of steps (not the threads' timing).
#include <cstdlib>
#include <escrow/detail/reference_set.hpp>
#include <optional>
#include <random>
#include <thread>

#include "../deleter/stress_time.hpp"
#include "exec_stress_actor.hpp"

#ifdef ESCROW_TEST_RUNTIME_SIM
#include <escrow/sim.hpp>
#endif

namespace escrow::test {
namespace {

constexpr std::size_t threads_max = 8;

class GraphExecStress : public captured_pool_test {
 protected:
  void run_all(arena& shared, common_graphs& common) {
    char const* const given = std::getenv("ESCROW_STRESS_SEED");
    std::uint64_t const seed = given == nullptr ? 1 : std::strtoull(given, nullptr, 10);
    for (std::size_t i = 0; i < threads_max; ++i) {
      actors_.push_back(std::make_unique<actor>(shared, common, seed * 1000 + i));
    }
    std::vector<std::thread> running;
    for (auto const& each : actors_) running.emplace_back([&each] { each->run(); });
    static_cast<void>(wait_until([] { return false; }, stress_time()));
    shared.stop.store(true, std::memory_order_relaxed);
    for (std::thread& each : running) each.join();
  }

  std::vector<std::unique_ptr<actor>> actors_;
};

TEST_F(GraphExecStress, NothingIsSharedFreedEarlyTwiceOrNever) {
  block_pool pool = make_pool(slots_max);
  auto const shared = std::make_unique<arena>(pool, *worker);
  common_graphs common;
  run_all(*shared, common);
  for (auto& place : common.places) place.held.reset();
  for (auto const& each : actors_) each->end();
  must(cudaDeviceSynchronize());

  auto const is_all_back = [&] {
    return drained() && worker->stats().in_graphs == 0 && graph_registry::global().is_empty();
  };
  EXPECT_TRUE(wait_until(is_all_back, std::chrono::seconds{20}));
  EXPECT_EQ(shared->owners_destroyed.load(std::memory_order_acquire), shared->owners_made.load());
  EXPECT_EQ(shared->owners_early.load(), 0u) << "owners were destroyed before the last run";
  EXPECT_EQ(shared->shared.load(), 0) << "slots were in two graphs";
  EXPECT_EQ(shared->refused.load(), 0) << "execs were not bare";
  for (auto const& each : actors_) EXPECT_EQ(each->mismatches(), 0) << "two launches at a time";
  EXPECT_EQ(pool.stats().in_graphs, 0u);
  EXPECT_EQ(pool.stats().deferred, 0u);
  EXPECT_EQ(worker->stats().leaked, 0u);
  EXPECT_EQ(worker->stats().pending, 0u);
  EXPECT_GT(shared->captures.load(), 50u);
  EXPECT_GT(shared->launches.load(), 50u);
  EXPECT_GT(shared->updates.load(), 5u);
  EXPECT_TRUE(pool.close_for(generous).empty());
#ifdef ESCROW_TEST_RUNTIME_SIM
  sim::counts const alive = sim::alive();
  EXPECT_EQ(alive.graphs + alive.execs + alive.execs_in_flight + alive.user_objects, 0u);
#endif
  actors_.clear();
}

// What an exec held goes through the worker in several steps, each of which lets go of the next.
TEST_F(GraphExecStress, ADrainWaitsForAllThatEndedExecsOfClosedPoolsHeld) {
  owned_stream const stream = make_stream();
  owned_stream const other = make_stream();
  std::mt19937_64 random(3);
  for (int round = 0; round < 200; ++round) {
    {
      block_pool pool = make_pool(2);
      std::optional<graph> source = escrow::capture(stream, [&](stream_ref on) {
        block_lease first = pool.claim(on);
        block_lease second = pool.claim(on);
        must(launch_sleep(on.get(), random() % 100));
        fill(first, on.get(), round);
        fill(second, on.get(), round);
      });
      std::optional<graph_exec> exec(*source);
      graph_exec rival(source->clone());
      exec->launch(stream);
      if (random() % 2 == 0) rival.launch(other);
      if (random() % 2 == 0) exec->launch(other);
      if (random() % 2 == 0) source.reset();
    }
    ASSERT_TRUE(drained());
    ASSERT_EQ(counts.alive(), 0) << "round " << round;
    ASSERT_EQ(worker->stats().pending, 0u);
  }
  sync(stream);
  sync(other);
}

}  // namespace
}  // namespace escrow::test
