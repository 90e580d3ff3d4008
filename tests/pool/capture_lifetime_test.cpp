// How long a captured slot stays away: until the graph, its clones, execs and launches are
// destroyed or complete.
#include <optional>
#include <stdexcept>

#include "pool_world.hpp"
#include "sanitizers.hpp"

namespace escrow::test {
namespace {

class LibraryCall : public pool_world {};

TEST_F(LibraryCall, GivesTheSameResultEagerAndCapturedInEveryMode) {
  block_pool pool = make_pool(4);
  use(pool, two, 1);
  for (cudaStreamCaptureMode const mode : all_modes) {
    capture captured{two, mode};
    use(pool, two, 2);
    EXPECT_TRUE(captured.is_active()) << testing::PrintToString(mode);
    must(captured.end());
    owned_exec const exec = instantiate(captured.graph());
    for (int i = 0; i < 5; ++i) must(cudaGraphLaunch(exec, two));
    use(pool, two, 3);
    sync(two);
  }
}

class CapturedLifetime : public pool_world {};

TEST_F(CapturedLifetime, TheSlotStaysWithTheGraphItsClonesParentsExecsAndLaunches) {
  block_pool pool = make_pool(1);
  owned_graph graph = captured_plainly([&](cudaStream_t on) {
    hold_up(on);
    use(pool, on);
  });
  EXPECT_TRUE(is_kept(pool)) << "the graph";
  owned_graph copy = clone(graph);
  graph.reset();
  EXPECT_TRUE(is_kept(pool)) << "its clone";
  owned_graph parent = make_graph();
  add_child(parent, copy);
  copy.reset();
  EXPECT_TRUE(is_kept(pool)) << "a parent of that";
  owned_exec exec = instantiate(parent);
  parent.reset();
  EXPECT_TRUE(is_kept(pool)) << "an exec";
  must(cudaGraphLaunch(exec, two));
  exec.reset();
  EXPECT_TRUE(stays_kept(pool)) << "its launch";
  flag.raise();
  EXPECT_TRUE(is_released(pool));
  EXPECT_EQ(pool.stats().in_graphs, 0U);
}

TEST_F(CapturedLifetime, AnUpdateReleasesTheOldSlotAndHoldsTheNewOne) {
  block_pool pool = make_pool(2);
  owned_graph first = captured_use(pool, 1);
  owned_exec exec = instantiate(first);
  owned_graph second = captured_use(pool, 2);
  EXPECT_EQ(pool.stats().in_graphs, 2U);
  cudaGraphExecUpdateResultInfo result{};
  must(cudaGraphExecUpdate(exec, second, &result));
  first.reset();
  second.reset();
  EXPECT_TRUE(wait_until([&] { return pool.stats().in_graphs == 1; }));
  must(cudaGraphLaunch(exec, two));
  sync(two);
  EXPECT_EQ(pool.stats().in_graphs, 1U);
  exec.reset();
  EXPECT_TRUE(leaves_graphs(pool));
}

TEST_F(CapturedLifetime, ACaptureThatComesToNothingReturnsTheSlot) {
  struct row {
    char const* name;
    std::function<void(block_pool&)> run;
  };
  row const rows[] = {
      {"its graph is destroyed", [&](auto& pool) { static_cast<void>(captured_use(pool)); }},
      {"it is invalidated",
       [&](auto& pool) {
         capture captured{one, cudaStreamCaptureModeGlobal};
         use(pool, one);
         invalidate(one);
         EXPECT_EQ(captured.end(), cudaErrorStreamCaptureInvalidated);
       }},
      {"its stream is destroyed",
       [&](auto& pool) {
         owned_stream const destroyed = make_stream();
         must(cudaStreamBeginCapture(destroyed, cudaStreamCaptureModeGlobal));
         use(pool, destroyed);
       }},
      {"the captured function throws", [&](auto& pool) {
         auto const fail_in_capture = [&] {
           static_cast<void>(captured([&](cudaStream_t on) {
             block_lease const held = pool.claim(on);
             throw std::runtime_error{"no"};
           }));
         };
         EXPECT_THROW(fail_in_capture(), std::runtime_error);
       }}};
  for (row const& each : rows) {
    block_pool pool = make_pool(1);
    each.run(pool);
    EXPECT_TRUE(is_released(pool)) << each.name;
  }
}

TEST_F(CapturedLifetime, AGraphHoldsTheSlotOfALeaseThatEndsAfterTheCapture) {
  block_pool pool = make_pool(1);
  capture captured{one, cudaStreamCaptureModeGlobal};
  block_lease held = pool.claim(one);
  must(captured.end());
  EXPECT_TRUE(is_kept(pool));
  held.release();
  EXPECT_TRUE(is_kept(pool));
  captured.graph().reset();
  EXPECT_TRUE(is_released(pool));
}

TEST_F(CapturedLifetime, EagerWorkAfterTheCaptureOnItsLeaseIsWaitedFor) {
  for (bool const is_graph_first : {true, false}) {  // destroyed before the lease is released
    pinned_flag done;
    block_pool pool = make_pool(1);
    capture captured{one, cudaStreamCaptureModeGlobal};
    block_lease held = pool.claim(one);
    must(captured.end());
    must(launch_wait_flag(one, done.get()));
    fill(held, one, 4);
    if (is_graph_first) captured.graph().reset();
    EXPECT_TRUE(is_kept(pool));
    held.release();
    captured.graph().reset();
    ASSERT_TRUE(drained());
    block_lease next = pool.claim(two);
    check(next, two, 4, mismatches);
    EXPECT_TRUE(stays_false([&] { return is_idle(two); }));
    done.raise();
    sync(two);
    next.release();
    end(pool);
  }
}

// The worker may be taking it from the graph to its free list.
TEST_F(CapturedLifetime, ASlotIsFreeAtOnceWhenItsGraphIsDestroyed) {
  constexpr int rounds = is_sanitized ? 10'000 : 100'000;
  block_pool pool = make_pool(1);
  for (int i = 0; i < rounds; ++i) {
    {
      capture captured{one, cudaStreamCaptureModeThreadLocal};
      ASSERT_TRUE(pool.try_claim(one).has_value()) << "round " << i;
      must(captured.end());
    }
    ASSERT_TRUE(pool.try_claim(two).has_value()) << "round " << i;
    sync(two);
  }
}

}  // namespace
}  // namespace escrow::test
