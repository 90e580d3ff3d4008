// SPDX-License-Identifier: Apache-2.0
// A pool that is held until it is closed puts no user object on a graph: what captures claim stays,
// also without graph and execs, until close_for().
#include <latch>
#include <random>
#include <thread>

#include "pool_world.hpp"

namespace escrow::test {
namespace {

class HeldUntilClosed : public pool_world {
 protected:
  [[nodiscard]] pool_options held(std::size_t slots_max = 4) {
    return with(options(slots_max), &pool_options::held_until_closed, true);
  }
  void expect_closes(block_pool& pool) {
    EXPECT_TRUE(pool.close_for(generous).empty());
    EXPECT_TRUE(drained());
    EXPECT_EQ(counts.alive(), 0);
  }
};

TEST_F(HeldUntilClosed, NeitherGraphNorPlainExecHasAUserObject) {
  block_pool pool = make_pool(held());
  owned_graph graph = captured_use(pool);
  EXPECT_TRUE(has_no_user_object());
  owned_exec const exec = instantiate(graph.get());
  graph.reset();
  EXPECT_TRUE(has_no_user_object());
  for (int i = 0; i < 3; ++i) must(cudaGraphLaunch(exec, two));
  sync(two);
  EXPECT_EQ(pool.stats().in_graphs, 1U);
  expect_closes(pool);
}

TEST_F(HeldUntilClosed, WhatACaptureClaimedStaysForExecsThatNobodyKnowsOf) {
  block_pool pool = make_pool(held(1));
  { owned_graph const graph = captured_use(pool); }
  EXPECT_TRUE(stays_kept(pool));
  EXPECT_EQ(pool.holders().size(), 1U);
  EXPECT_NE(pool.holders().front().capture_id, 0U);
  expect_closes(pool);
}

TEST_F(HeldUntilClosed, WhatACaptureWithoutAGraphClaimedComesBack) {
  block_pool pool = make_pool(held(1));
  event const fork;
  using ending = std::function<void(stream_ref)>;
  for (ending const& end : {ending([](stream_ref) { throw std::runtime_error("no graph"); }),
                            ending([](stream_ref on) { invalidate(on.get()); }),
                            ending([&](stream_ref on) {  // and is not joined
                              fork.ref().record(on);
                              fork.ref().wait(two);
                              must(launch_tiny(two));
                            })}) {
    auto const claim = [&](stream_ref on) {
      use(pool, on.get());
      end(on);
    };
    EXPECT_ANY_THROW(static_cast<void>(escrow::capture(one, claim)));
    EXPECT_TRUE(wait_until([&] { return pool.stats().in_graphs == 0; }));
  }
  use(pool, one);
  {
    graph const made = escrow::capture(one, [&](stream_ref on) { use(pool, on.get()); });
  }
  EXPECT_TRUE(stays_kept(pool));
  expect_closes(pool);
}

TEST_F(HeldUntilClosed, WithinACaptureSlotsAreReused) {
  block_pool pool = make_pool(held(2));
  owned_graph const graph = captured_plainly([&](cudaStream_t on) {
    for (int i = 0; i < 5; ++i) use(pool, on, i);
    order(on, two);
    use(pool, two, 6);
    order(two, on);
    use(pool, on, 7);
  });
  EXPECT_EQ(pool.stats().slots, 1U);
  expect_right_results(graph.get());
  expect_closes(pool);
}

TEST_F(HeldUntilClosed, ScratchAllocatorsAndClaimersAreToo) {
  scratch_pool scratch(held());
  stream_allocator allocator(held());
  auto local = scratch.on(one);
  {
    graph const made = captured([&](cudaStream_t on) {
      static_cast<void>(scratch.claim(on, 1024));
      static_cast<void>(local.claim(1024));
      allocator.deallocate(on, allocator.allocate(on, 1024));
    });
    EXPECT_TRUE(has_no_user_object());
    EXPECT_TRUE(graph_exec(made).is_bare());
  }
  static_cast<void>(drains_soon());
  EXPECT_EQ(scratch.stats().bytes_in_graphs, 1024U);
  EXPECT_TRUE(scratch.close_for(generous).empty());
  EXPECT_TRUE(allocator.pool().close_for(generous).empty());
}

TEST_F(HeldUntilClosed, TwoExecsOfAGraphAreOrderedAsEver) {
  block_pool pool = make_pool(held());
  {
    graph const made = captured_behind_flag([&](cudaStream_t on) { use(pool, on, 3); });
    graph_exec first(made), second(made);
    first.launch(two);
    expect_ordered([&] { second.launch(three); });
    sync_all();
  }
  expect_closes(pool);
}

TEST_F(HeldUntilClosed, CloseForWaitsForALaunchOfGraphExec) {
  block_pool pool = make_pool(held());
  std::optional<graph_exec> exec(captured_behind_flag([&](cudaStream_t on) { use(pool, on, 3); }));
  exec->launch(two);
  exec.reset();
  EXPECT_EQ(pool.close_for(std::chrono::milliseconds(5)).size(), 1U) << "the launch is not over";
  EXPECT_EQ(counts.alive(), 1);
  flag.raise();
  expect_closes(pool);
}

TEST_F(HeldUntilClosed, ItsGraphsCanBeClonedEmbeddedAndHoisted) {
  block_pool pool = make_pool(held());
  {
    graph const made = captured([&](cudaStream_t on) { use(pool, on, 3); });
    graph const copy = made.clone();
    graph parent;
    parent.add_child(made);
    parent.add_child(copy);
    hoisted parts = hoist(parent);
    owned_exec const exec = instantiate(parent.get());
    parts.launch(two, [&] { must(cudaGraphLaunch(exec, two)); });
    sync(two);
    parts.release_after(two);
    run(copy);
    EXPECT_TRUE(has_no_user_object());
  }
  static_cast<void>(drains_soon());
  EXPECT_EQ(pool.stats().in_graphs, 1U);
  expect_closes(pool);
}

TEST_F(HeldUntilClosed, GraphsOfAGroupShareAndOtherPoolsOfItAreAsEver) {
  sharing_group group;
  block_pool pool = make_pool(with(held(), &pool_options::group, group));
  block_pool other = make_pool(with(options(2), &pool_options::group, group));
  for (int i = 0; i < 3; ++i) {
    graph const made = captured([&](cudaStream_t on) {
      use(pool, on, i);
      use(other, on, i);
    });
    run(made);
  }
  EXPECT_TRUE(leaves_graphs(other));
  EXPECT_EQ(pool.stats().slots, 1U);
  EXPECT_EQ(pool.stats().in_graphs, 1U);
  EXPECT_TRUE(pool.close_for(generous).empty());
}

TEST_F(HeldUntilClosed, ALeaseThatLivesIsWaitedFor) {
  block_pool pool = make_pool(held());
  std::optional<block_lease> out;
  {
    graph const made = captured([&](cudaStream_t on) { out.emplace(pool.claim_kept(on)); });
  }
  EXPECT_EQ(pool.close_for(std::chrono::milliseconds(5)).size(), 1U);
  out.reset();
  expect_closes(pool);
}

TEST_F(HeldUntilClosed, APoolThatEndsWithoutTheCloseLeaksCountsAndTells) {
  errors_expected = true;
  lost = 2;
  owed = 2;
  {
    block_pool pool = make_pool(held());
    for (int i = 0; i < 2; ++i) static_cast<void>(captured_use(pool));
    block_lease const idle = pool.claim(two);  // was never in a capture: it is destroyed
  }
  EXPECT_TRUE(drained());
  EXPECT_EQ(worker->stats().leaked, 2U);
  EXPECT_EQ(counts.alive(), 2);
  ASSERT_EQ(errors->size(), 1U);
  EXPECT_NE(errors->all().find("\"blocks\" is held until it is closed"), std::string::npos);
  EXPECT_NE(errors->all().find("close_for()"), std::string::npos);
}

TEST_F(HeldUntilClosed, APoolWithoutCapturesEndsAsAnyOther) {
  {
    block_pool pool = make_pool(held());
    use(pool, one);
  }
  EXPECT_TRUE(drained());
  EXPECT_EQ(worker->stats().leaked, 0U);
}

TEST_F(HeldUntilClosed, MayBeClosedBesideACaptureThatClaims) {
  std::mt19937 random(1);
  for (int round = 0; round < 400; ++round) {
    pool_options options = held();
    if (round % 2 != 0) options.group = sharing_group();
    scratch_pool pool(options);
    std::latch begins(2);
    std::thread closes([&, pause = std::chrono::microseconds(random() % 100)] {
      begins.arrive_and_wait();
      std::this_thread::sleep_for(pause);
      static_cast<void>(pool.close_for({}));
    });
    {
      test::capture open{one, cudaStreamCaptureModeThreadLocal};
      begins.arrive_and_wait();
      try {
        // Of places that the claim before has covered.
        for (std::size_t i = 0;; ++i) pool.claim(one, std::size_t{4096} << i % 2).release();
      } catch (usage_error const&) {  // it is closed
      }
      must(launch_tiny(one));
    }
    closes.join();
    EXPECT_TRUE(pool.close_for(generous).empty()) << pool.describe();
  }
}

}  // namespace
}  // namespace escrow::test
