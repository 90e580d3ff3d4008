// Graphs that are edited after their capture and then captured into again, which keeps their id:
// what the pool remembers of their nodes may be of nodes that are gone.
#include <algorithm>
#include <optional>

#include "capture_fixture.hpp"
#include "early_edges.hpp"

namespace escrow::test {
namespace {

class CapturedAgain : public captured_pool_test {
 protected:
  [[nodiscard]] std::vector<cudaGraphNode_t> nodes_of(cudaGraph_t graph) {
    std::size_t count = 0;
    must(cudaGraphGetNodes(graph, nullptr, &count));
    std::vector<cudaGraphNode_t> nodes(count);
    must(cudaGraphGetNodes(graph, nodes.data(), &count));
    return nodes;
  }
  // The node that nothing comes after.
  [[nodiscard]] cudaGraphNode_t last_of(cudaGraph_t graph) {
    for (cudaGraphNode_t const node : nodes_of(graph)) {
      std::size_t after = 0;
      must(cudaGraphNodeGetDependentNodes(node, nullptr, nullptr, &after));
      if (after == 0) return node;
    }
    return nullptr;
  }
  void begin_again(cudaGraph_t graph, std::optional<cudaGraphNode_t> after = {}) {
    must(cudaStreamBeginCaptureToGraph(stream, graph, after ? &*after : nullptr, nullptr,
                                       after ? 1 : 0, cudaStreamCaptureModeGlobal));
  }
  void end_again(cudaGraph_t graph) {
    cudaGraph_t same = nullptr;
    ASSERT_EQ(cudaStreamEndCapture(stream, &same), cudaSuccess);
    EXPECT_EQ(same, graph);
  }
  owned_stream stream = make_stream();
};

TEST_F(CapturedAgain, AtTheLimitNoEdgeIsDrawnFromNodesThatWereDestroyed) {
  block_pool pool = make_pool(1);
  owned_graph graph = captured_work(pool, stream, 1);
  cudaGraphNode_t const last = last_of(graph);
  must(cudaGraphDestroyNode(last));
  begin_again(graph);
  must(launch_tiny(stream));
  EXPECT_FALSE(pool.try_claim(stream).has_value());
  EXPECT_EQ(pool.stats().edges_added, 0u);
  end_again(graph);
  expect_right_results(graph, stream);
  graph.reset();
  EXPECT_TRUE(is_back(pool));
}

TEST_F(CapturedAgain, ANewNodeWithADestroyedNodesHandleIsNotTakenForIt) {
  block_pool pool = make_pool(2);
  owned_graph graph = captured_work(pool, stream, 1);  // it fills, and then checks
  cudaGraphNode_t const last = last_of(graph);
  must(cudaGraphDestroyNode(last));
  begin_again(graph);
  // Beside the node that fills, which nothing comes after any more.
  bool is_used_again = false;
  for (int i = 0; i < 100 && !is_used_again; ++i) {
    must(launch_tiny(stream));
    std::vector<cudaGraphNode_t> const nodes = nodes_of(graph);
    is_used_again = std::find(nodes.begin(), nodes.end(), last) != nodes.end();
  }
  if (is_used_again) {
    EXPECT_EQ(pool.claim(stream)->number(), 1) << "the one that fills may run at the same time";
  }
  end_again(graph);
  if (!is_used_again) GTEST_SKIP() << "handles are not used again here";
}

TEST_F(CapturedAgain, NorIsOneThatDependsOnTheSameNodeByAnotherEdge) {
  block_pool pool = make_pool(2);
  owned_graph graph = captured_work(pool, stream, 1);  // it fills, and then checks
  cudaGraphNode_t const last = last_of(graph);
  must(cudaGraphDestroyNode(last));
  cudaGraphNode_t const fills = last_of(graph);
  begin_again(graph, fills);
  bool is_used_again = false;
  for (int i = 0; i < 100 && !is_used_again; ++i) {
    cudaGraphNode_t front = fills;
    must(cudaStreamUpdateCaptureDependencies(stream, &front, &launch_completion_edge, 1,
                                             cudaStreamSetCaptureDependencies));
    must(launch_tiny(stream));
    is_used_again = frontier_in(stream).nodes.at(0) == last;
  }
  if (is_used_again) {
    EXPECT_EQ(pool.claim(stream)->number(), 1) << "the one that fills may run at the same time";
  }
  end_again(graph);
  if (!is_used_again) GTEST_SKIP() << "handles are not used again here";
}

TEST_F(CapturedAgain, WhatStandsServesAgainAfterAnotherPartWasDestroyed) {
  block_pool pool = make_pool(2);
  capture captured{stream, cudaStreamCaptureModeGlobal};
  library_work(pool, stream, 1, mismatches);
  owned_graph graph;
  must(launch_tiny(stream));
  must(captured.end());
  graph = std::move(captured.graph());
  must(cudaGraphDestroyNode(last_of(graph)));
  begin_again(graph, last_of(graph));
  library_work(pool, stream, 2, mismatches);
  end_again(graph);
  EXPECT_EQ(pool.stats().in_graphs, 1u);
  expect_right_results(graph, stream);
}

TEST_F(CapturedAgain, AtTheLimitAnEdgeIsDrawnFromNodesThatStand) {
  block_pool pool = make_pool(1);
  owned_graph graph = captured_work(pool, stream, 1);
  begin_again(graph);
  library_work(pool, stream, 2, mismatches);
  end_again(graph);
  EXPECT_EQ(pool.stats().edges_added, 1u);
  EXPECT_EQ(pool.stats().in_graphs, 1u);
  expect_right_results(graph, stream);
}

}  // namespace
}  // namespace escrow::test
