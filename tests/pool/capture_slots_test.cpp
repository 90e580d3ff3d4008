// SPDX-License-Identifier: Apache-2.0
// How many slots a captured graph holds: as many as its widest moment. A slot is used again only
// behind edges that wait for the end of its last use, in the graph as it is at the claim.

#include "pool_world.hpp"

namespace escrow::test {
namespace {

class CapturedSlots : public pool_world {};

TEST_F(CapturedSlots, AForkHoldsOneSlotABranchAndAfterTheJoinTheyServeAgain) {
  constexpr std::size_t width = 5;
  std::vector<owned_stream> branches(width - 1);
  for (owned_stream& branch : branches) branch = make_stream();
  block_pool pool = make_pool(16);
  capture captured{one, cudaStreamCaptureModeGlobal};
  for (int round = 0; round < 3; ++round) {
    must(launch_tiny(one));
    for (owned_stream const& branch : branches) order(one, branch);
    for (int call = 0; call < 3; ++call) use(pool, one, 100 + call);
    int value = 0;
    for (owned_stream const& branch : branches) {
      for (int call = 0; call < 3; ++call) use(pool, branch, ++value);
    }
    for (owned_stream const& branch : branches) order(branch, one);
    for (int call = 0; call < 3; ++call) use(pool, one, call);
    EXPECT_EQ(pool.stats().in_graphs, width);
  }
  EXPECT_EQ(made(), static_cast<int>(width));
  EXPECT_EQ(pool.stats().edges_added, 0U);
  expect_right_results(captured);
}

TEST_F(CapturedSlots, ABranchTakesItsOwnSlotAndLeavesTheOlderOneToTheOthers) {
  block_pool pool = make_pool(8);
  capture captured{one, cudaStreamCaptureModeGlobal};
  must(launch_tiny(one));
  std::optional<block_lease> of_origin = pool.claim(one);
  fill(*of_origin, one, 1);
  order(one, two);
  use(pool, two, 2);
  of_origin.reset();  // released last, but what the branch did comes after its work
  for (int round = 0; round < 3; ++round) {
    use(pool, two, 3);
    use(pool, one, 4);
  }
  EXPECT_EQ(pool.stats().in_graphs, 2U);
  EXPECT_EQ(pool.stats().edges_added, 0U);
  order(two, one);
  expect_right_results(captured);
}

TEST_F(CapturedSlots, AtTheLimitAnEdgeMakesOneBranchRunAfterTheOther) {
  block_pool pool = make_pool(1);
  capture captured{one, cudaStreamCaptureModeGlobal};
  must(launch_tiny(one));
  order(one, two);
  {
    block_lease held = pool.claim(two);
    fill(held, two, 1);
    hold_up(two);
    check(held, two, 1, mismatches);
  }
  {
    block_lease held = pool.claim(one);
    must(launch_add(one, started(), 1));
    fill(held, one, 2);
    check(held, one, 2, mismatches);
  }
  order(two, one);
  EXPECT_EQ(pool.stats().edges_added, 1U);
  EXPECT_EQ(pool.stats().in_graphs, 1U);
  must(captured.end());
  owned_exec const exec = instantiate(captured.graph());
  must(cudaGraphLaunch(exec, one));
  EXPECT_TRUE(stays_false([&] { return cells.load(1) != 0; }));
  flag.raise();
  sync(one);
  EXPECT_EQ(cells.load(1), 1);
}

TEST_F(CapturedSlots, RecordStreamOrdersTheNextUseAfterABranch) {
  for (cudaStream_t const branch : {two.get(), cudaStreamPerThread}) {
    block_pool pool = make_pool(4);
    capture captured{one, cudaStreamCaptureModeRelaxed};
    must(launch_tiny(one));
    int used = -1;
    {
      block_lease held = pool.claim(one);
      used = held->number();
      order(one, branch);
      held.record_stream(branch);
      fill(held, branch, 1);
      check(held, branch, 1, mismatches);
    }
    EXPECT_NE(pool.claim(one)->number(), used) << "the branch may still use it";
    order(branch, one);
    block_lease const first = pool.claim(one);
    block_lease const second = pool.claim(one);
    EXPECT_EQ(pool.stats().slots, 2U) << "both serve again";
    expect_right_results(captured);
  }
}

// Edges that let work run concurrently with a kernel (programmatic dependent launch).
class CapturedEarlyEdges : public pool_world,
                           public testing::WithParamInterface<cudaGraphEdgeData> {
 protected:
  /// Uses a slot on stream `one`; what comes next on `at` waits for no more of its last kernel than
  /// the edge says.
  void use_and_fork(block_pool& pool, cudaStream_t at) {
    used = use_any(pool, one, 1);
    order(one, at);
    wait_early(at, GetParam());
  }
  /// Uses what a claim on `at` gives; which slot it was.
  int use_any(block_pool& pool, cudaStream_t at, int value = 2) {
    block_lease held = pool.claim(at);
    fill(held, at, value);
    check(held, at, value, mismatches);
    return held->number();
  }
  [[nodiscard]] static bool is_trigger() { return is_same(GetParam(), trigger_edge); }

  int used = -1;
};

TEST_P(CapturedEarlyEdges, WorkConcurrentWithAKernelGetsAnotherSlot) {
  struct row {
    char const* name;
    bool is_same_slot = false;
    int kernels = 0;  // enqueued between
    bool fills = false;
    bool waits_for_end = false;
    int forks = 0;
  };
  device_ints const memory{1};
  // The first kernel behind a trigger may wait for it.
  row const rows[] = {
      {.name = "at once"},
      {.name = "behind kernels", .is_same_slot = is_trigger(), .kernels = 2},
      {.name = "behind anything but a kernel", .fills = true},
      {.name = "behind the kernel's end as well",
       .is_same_slot = true,
       .kernels = 1,
       .waits_for_end = true},
      {.name = "with many other edges", .is_same_slot = is_trigger(), .kernels = 1, .forks = 20}};
  for (row const& each : rows) {
    SCOPED_TRACE(each.name);
    block_pool pool = make_pool(2);
    capture captured{one, cudaStreamCaptureModeGlobal};
    must(launch_tiny(one));
    order(one, three);
    use_and_fork(pool, two);
    for (int i = 0; i < each.forks; ++i) {
      owned_stream const fork = make_stream();
      order(three, fork);
      must(launch_tiny(fork));
      order(fork, two);
    }
    for (int i = 0; i < each.kernels; ++i) must(launch_tiny(two));
    if (each.fills) must(cudaMemsetAsync(memory.data(), 0, sizeof(int), two));
    if (each.waits_for_end) order(one, two);
    EXPECT_EQ(use_any(pool, two) == used, each.is_same_slot);
    order(two, one);
    order(three, one);
    expect_right_results(captured);
    EXPECT_EQ(pool.stats().edges_added, 0U);
  }
}

TEST_P(CapturedEarlyEdges, AtTheLimitAClaimWaitsForTheKernelsEnd) {
  block_pool pool = make_pool(1);
  capture captured{one, cudaStreamCaptureModeGlobal};
  use_and_fork(pool, two);
  {
    block_lease const held = pool.claim(two);
    EXPECT_EQ(pool.stats().edges_added, 1U);
    EXPECT_EQ(frontier_in(two).nodes.size(), 1U);
    EXPECT_TRUE(is_same(frontier_in(two).edges.at(0), full_edge));
  }
  EXPECT_EQ(use_any(pool, two), used);
  order(two, one);
  expect_right_results(captured);
}

INSTANTIATE_TEST_SUITE_P(All, CapturedEarlyEdges, testing::ValuesIn(early_edges));

TEST_F(CapturedSlots, OfAChainOfProgrammaticLaunchesAreOne) {
  block_pool pool = make_pool(2);
  capture captured{one, cudaStreamCaptureModeGlobal};
  for (int i = 0; i < 10; ++i) {
    use(pool, one, i);
    for (int k = 0; k < 3; ++k) must(launch_programmatically(one));
  }
  expect_right_results(captured);
  EXPECT_EQ(pool.stats().slots, 1U);
  EXPECT_EQ(pool.stats().edges_added, 0U);
}

// A graph that is captured into again keeps its id, also if nodes were destroyed before.
class CapturedAgain : public pool_world {
 protected:
  /// The node that nothing comes after.
  [[nodiscard]] static cudaGraphNode_t last_of(cudaGraph_t graph) {
    std::size_t count = node_count(graph);
    std::vector<cudaGraphNode_t> nodes(count);
    must(cudaGraphGetNodes(graph, nodes.data(), &count));
    for (cudaGraphNode_t const node : nodes) {
      std::size_t after = 0;
      must(cudaGraphNodeGetDependentNodes(node, nullptr, nullptr, &after));
      if (after == 0) return node;
    }
    return nullptr;
  }
  /// Launches tiny kernels until one of the graph's nodes has the handle; `place` comes before
  /// each.
  [[nodiscard]] bool is_used_again(cudaGraphNode_t handle, auto place) {
    for (int i = 0; i < 100; ++i) {
      place();
      must(launch_tiny(one));
      if (frontier_in(one).nodes.at(0) == handle) return true;
    }
    return false;
  }
};

TEST_F(CapturedAgain, AGraphUsesItsSlotAgainBehindItsUseAndAnotherOneElsewhere) {
  struct row {
    char const* name;
    std::size_t slots;
    bool has_lost_a_node;  // behind the use
    bool is_behind;
    std::size_t in_graphs;
    std::size_t edges_added;
  };
  for (row const& each : {row{"behind its use", 2, false, true, 1, 0},
                          row{"behind what is left behind its use", 2, true, true, 1, 0},
                          row{"elsewhere", 2, false, false, 2, 0},
                          row{"elsewhere, at the limit", 1, false, false, 1, 1}}) {
    SCOPED_TRACE(each.name);
    block_pool pool = make_pool(each.slots);
    owned_graph const graph = captured_plainly([&](cudaStream_t on) {
      use(pool, on);
      if (each.has_lost_a_node) must(launch_tiny(on));
    });
    if (each.has_lost_a_node) must(cudaGraphDestroyNode(last_of(graph)));
    cudaGraphNode_t const last = last_of(graph);
    auto const use_again = [&](cudaStream_t on) { use(pool, on, 2); };
    capture_into(graph, use_again, &last, each.is_behind ? 1 : 0);
    EXPECT_EQ(pool.stats().in_graphs, each.in_graphs);
    EXPECT_EQ(pool.stats().edges_added, each.edges_added);
    expect_right_results(graph);
  }
}

TEST_F(CapturedAgain, AtTheLimitNoEdgeIsDrawnFromNodesThatWereDestroyed) {
  block_pool pool = make_pool(1);
  owned_graph graph = captured_use(pool);
  must(cudaGraphDestroyNode(last_of(graph)));
  capture_into(graph, [&](cudaStream_t on) {
    must(launch_tiny(on));
    EXPECT_FALSE(pool.try_claim(on).has_value());
  });
  EXPECT_EQ(pool.stats().edges_added, 0U);
  expect_right_results(graph);
  graph.reset();
  EXPECT_TRUE(is_released(pool));
}

// The graph fills, then checks. The check is destroyed, and its handle given to a new node that is
// not ordered after the end of the fill.
TEST_F(CapturedAgain, ANodeWithTheHandleOfADestroyedOneIsNotTakenForIt) {
  for (bool const is_early : {false, true}) {  // the new node also depends on the fill
    block_pool pool = make_pool(2);
    owned_graph const graph = captured_use(pool);
    cudaGraphNode_t const destroyed = last_of(graph);
    must(cudaGraphDestroyNode(destroyed));
    cudaGraphNode_t fills = last_of(graph);
    bool has_found = false;
    capture_into(
        graph,
        [&](cudaStream_t on) {
          has_found = is_used_again(destroyed, [&] {
            if (!is_early) return;
            must(cudaStreamUpdateCaptureDependencies(on, &fills, &launch_completion_edge, 1,
                                                     cudaStreamSetCaptureDependencies));
          });
          if (has_found) {
            EXPECT_EQ(pool.claim(on)->number() % 2, 1) << "the fill may be running";
          }
        },
        &fills, is_early ? 1 : 0);
    if (!has_found) GTEST_SKIP() << "handles are not used again here";
  }
}

}  // namespace
}  // namespace escrow::test
