// A capture uses a slot again only behind edges that wait for the end of its last use, in the graph
// as it is at the claim.

#include "build_graph.hpp"
#include "pool_world.hpp"

namespace escrow::test {
namespace {

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
    std::function<void()> enqueue;
    bool is_same_slot;
  };
  device_ints const memory{1};
  row const rows[] = {{"at once", [] {}, false},
                      {"behind kernels, of which the first may wait for the trigger",
                       [&] {
                         must(launch_tiny(two));
                         must(launch_tiny(two));
                       },
                       is_trigger()},
                      {"behind anything but a kernel",
                       [&] { must(cudaMemsetAsync(memory.data(), 0, sizeof(int), two)); }, false},
                      {"behind the kernel's end as well",
                       [&] {
                         must(launch_tiny(two));
                         order(one, two);
                       },
                       true},
                      {"with many other edges",
                       [&] {
                         for (int i = 0; i < 20; ++i) {
                           owned_stream const fork = make_stream();
                           order(three, fork);
                           must(launch_tiny(fork));
                           order(fork, two);
                         }
                         must(launch_tiny(two));
                       },
                       is_trigger()}};
  for (row const& each : rows) {
    SCOPED_TRACE(each.name);
    block_pool pool = make_pool(2);
    capture captured{one, cudaStreamCaptureModeGlobal};
    must(launch_tiny(one));
    order(one, three);
    use_and_fork(pool, two);
    each.enqueue();
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

TEST_P(CapturedEarlyEdges, ASlotReleasedWhileAKernelRunsIsInUseUntilItsEnd) {
  for (bool const is_recorded : {false, true}) {  // the kernel is on a stream of record_stream()
    block_pool pool = make_pool(2);
    capture captured{one, cudaStreamCaptureModeGlobal};
    must(launch_tiny(one));
    order(one, three);
    if (is_recorded) order(one, two);
    cudaStream_t const last = is_recorded ? two : one;
    {
      block_lease held = pool.claim(one);
      used = held->number();
      if (is_recorded) held.record_stream(last);
      fill(held, last, 1);
      check(held, last, 1, mismatches);
      wait_early(last, GetParam());
    }
    EXPECT_NE(use_any(pool, three), used) << "another branch";
    must(launch_tiny(last));
    if (is_recorded) order(two, one);
    order(three, one);
    expect_right_results(captured);
  }
}

INSTANTIATE_TEST_SUITE_P(All, CapturedEarlyEdges, testing::ValuesIn(early_edges));

class CapturedChain : public pool_world {};

TEST_F(CapturedChain, OfProgrammaticLaunchesNeedsOneSlot) {
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
  template <class Place>
  [[nodiscard]] bool is_used_again(cudaGraphNode_t handle, Place place) {
    for (int i = 0; i < 100; ++i) {
      place();
      must(launch_tiny(one));
      if (frontier_in(one).nodes.at(0) == handle) return true;
    }
    return false;
  }
};

TEST_F(CapturedAgain, AGraphUsesItsSlotAgainBehindItsUseAndAnotherOneElsewhere) {
  for (bool const is_behind : {true, false}) {
    block_pool pool = make_pool(2);
    owned_graph const graph = captured_use(pool);
    cudaGraphNode_t const last = last_of(graph);
    capture_into(
        graph, [&](cudaStream_t on) { use(pool, on, 2); }, &last, is_behind ? 1 : 0);
    EXPECT_EQ(pool.stats().in_graphs, is_behind ? 1U : 2U);
    expect_right_results(graph);
  }
}

TEST_F(CapturedAgain, AtTheLimitAnEdgeIsDrawnFromNodesThatExist) {
  block_pool pool = make_pool(1);
  owned_graph const graph = captured_use(pool);
  capture_into(graph, [&](cudaStream_t on) { use(pool, on, 2); });
  EXPECT_EQ(pool.stats().edges_added, 1U);
  EXPECT_EQ(pool.stats().in_graphs, 1U);
  expect_right_results(graph);
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

TEST_F(CapturedAgain, ASlotServesAgainAfterNodesBehindItsUseWereDestroyed) {
  block_pool pool = make_pool(2);
  owned_graph const graph = captured_plainly([&](cudaStream_t on) {
    use(pool, on);
    must(launch_tiny(on));
  });
  must(cudaGraphDestroyNode(last_of(graph)));
  cudaGraphNode_t const last = last_of(graph);
  capture_into(
      graph, [&](cudaStream_t on) { use(pool, on, 2); }, &last, 1);
  EXPECT_EQ(pool.stats().in_graphs, 1U);
  expect_right_results(graph);
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
