// What a capture's id and graph handle identify.
#include <gtest/gtest.h>

#include <set>

#include "build_graph.hpp"
#include "capturing.hpp"
#include "child.hpp"
#include "handles.hpp"

namespace escrow::test {
namespace {

using capture_id = unsigned long long;

constexpr auto relaxed = cudaStreamCaptureModeRelaxed;

// Captures one tiny kernel and tells the capture's id.
owned_graph capture_tiny(cudaStream_t stream, capture_id& id) {
  capture open{stream, relaxed};
  must(launch_tiny(stream));
  id = open.info().id;
  must(open.end());
  return std::move(open.graph());
}

// Re-opens `graph`, ends the capture at once, and returns the id it reported.
capture_id id_by_reopening(cudaStream_t stream, cudaGraph_t graph) {
  must(cudaStreamBeginCaptureToGraph(stream, graph, nullptr, nullptr, 0, relaxed));
  capture_info const now = info_of(stream);
  must(now.error);
  must(now.graph == graph, "the re-opened graph is the one that is captured into");
  cudaGraph_t ended = nullptr;
  must(cudaStreamEndCapture(stream, &ended));
  must(ended == graph, "EndCapture returns the re-opened graph");
  return now.id;
}

int count_captures() {
  owned_stream const stream = make_stream();
  for (capture_id expected = 1; expected <= 3; ++expected) {
    capture_id id = 0;
    owned_graph const graph = capture_tiny(stream, id);
    must(id == expected, "captures get 1, 2, 3");
  }
  return 42;
}

child_case const count_case{"count_captures", &count_captures};

TEST(CaptureId, IsOneTwoThreeForTheFirstCapturesOfAProcess) {
  child_result const child = run_child("count_captures");
  EXPECT_EQ(child.status, 42) << child.output;
}

TEST(CaptureId, IsTheSameEachTimeThatTheGraphIsReopened) {
  owned_stream const stream = make_stream();
  owned_stream const other = make_stream();
  capture_id id = 0;
  owned_graph const graph = capture_tiny(stream, id);
  EXPECT_EQ(id_by_reopening(stream, graph), id);
  EXPECT_EQ(id_by_reopening(other, graph), id);
  EXPECT_EQ(id_by_reopening(stream, graph), id);
}

TEST(CaptureId, OfACloneIsItsOwn) {
  owned_stream const stream = make_stream();
  capture_id id = 0;
  owned_graph const graph = capture_tiny(stream, id);
  owned_graph const copy = clone(graph);
  capture_id const id_of_copy = id_by_reopening(stream, copy);
  EXPECT_NE(id_of_copy, id);
  EXPECT_EQ(id_by_reopening(stream, copy), id_of_copy);
  EXPECT_EQ(id_by_reopening(stream, graph), id);
}

TEST(CaptureId, IsNeverGivenAgainThoughHandlesAre) {
  owned_stream const stream = make_stream();
  std::set<capture_id> ids;
  std::set<cudaGraph_t> handles;
  int const rounds = 500;
  for (int i = 0; i < rounds; ++i) {
    capture_id id = 0;
    owned_graph const captured = capture_tiny(stream, id);
    EXPECT_TRUE(ids.insert(id).second);
    handles.insert(captured);
    owned_graph const made = make_graph();
    EXPECT_TRUE(ids.insert(id_by_reopening(stream, made)).second);
  }
  EXPECT_EQ(ids.size(), 2U * rounds);
  // Handles come from an allocator, which a sanitizer may keep from giving the same address again.
  if (!is_simulated()) {
    EXPECT_LT(handles.size(), static_cast<std::size_t>(rounds));
  }
}

TEST(CaptureId, AndGraphOfAForkedStreamAreThoseOfItsOrigin) {
  owned_stream const origin = make_stream();
  owned_stream const forked = make_stream();
  owned_event const fork = make_event();
  owned_event const join = make_event();
  capture open{origin, cudaStreamCaptureModeGlobal};
  must(cudaEventRecord(fork, origin));
  must(cudaStreamWaitEvent(forked, fork, 0));
  must(launch_tiny(forked));
  capture_info const of_origin = open.info();
  capture_info const of_forked = info_of(forked);
  EXPECT_EQ(of_forked.error, cudaSuccess);
  EXPECT_EQ(of_forked.status, cudaStreamCaptureStatusActive);
  EXPECT_EQ(of_forked.id, of_origin.id);
  EXPECT_EQ(of_forked.graph, of_origin.graph);
  must(cudaEventRecord(join, forked));
  must(cudaStreamWaitEvent(origin, join, 0));
  ASSERT_EQ(open.end(), cudaSuccess);
  EXPECT_EQ(open.graph().get(), of_origin.graph);
  EXPECT_EQ(info_of(forked).status, cudaStreamCaptureStatusNone);
}

TEST(ConcurrentCapture, IntoTheSameGraphIsAnIllegalState) {
  owned_stream const first = make_stream();
  owned_stream const second = make_stream();
  owned_graph const graph = make_graph();
  must(cudaStreamBeginCaptureToGraph(first, graph, nullptr, nullptr, 0, relaxed));
  EXPECT_EQ(cudaStreamBeginCaptureToGraph(second, graph, nullptr, nullptr, 0, relaxed),
            cudaErrorIllegalState);
  static_cast<void>(cudaGetLastError());
  cudaGraph_t ended = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(first, &ended), cudaSuccess);
  EXPECT_EQ(ended, graph.get());
}

// Re-opening, in Relaxed mode, as a way to ask for a graph's id.
class ReopenedGraph : public testing::Test {
 protected:
  owned_stream stream = make_stream();
  owned_graph graph = make_graph();
};

TEST_F(ReopenedGraph, GetsNoNode) {
  add_kernel(graph, tiny_call(), add_kernel(graph, tiny_call()));
  static_cast<void>(id_by_reopening(stream, graph));
  EXPECT_EQ(node_count(graph), 2U);
  EXPECT_EQ(edge_count(graph), 1U);
  owned_exec const exec = instantiate(graph);
  EXPECT_EQ(cudaGraphLaunch(exec, stream), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
}

TEST_F(ReopenedGraph, MayHaveChildNodesAndTheEmbeddedGraphHasItsOwnId) {
  owned_graph const child = tiny_graph();
  cudaGraph_t const embedded = embedded_graph(add_child(graph, child));
  capture_id const id = id_by_reopening(stream, graph);
  capture_id const id_of_embedded = id_by_reopening(stream, embedded);
  EXPECT_NE(id_of_embedded, id);
  EXPECT_NE(id_of_embedded, id_by_reopening(stream, child));
  EXPECT_EQ(id_by_reopening(stream, embedded), id_of_embedded);
  EXPECT_EQ(id_by_reopening(stream, graph), id);
  EXPECT_EQ(node_count(graph), 1U);
  EXPECT_EQ(node_count(embedded), 1U);
}

TEST_F(ReopenedGraph, MayHaveConditionalNodesAndTheBodyHasItsOwnId) {
  cudaGraph_t const body = add_conditional(graph);
  add_kernel(body, tiny_call());
  capture_id const id = id_by_reopening(stream, graph);
  capture_id const id_of_body = id_by_reopening(stream, body);
  EXPECT_NE(id_of_body, id);
  EXPECT_EQ(id_by_reopening(stream, body), id_of_body);
  EXPECT_EQ(id_by_reopening(stream, graph), id);
  EXPECT_EQ(node_count(graph), 1U);
  EXPECT_EQ(node_count(body), 1U);
}

TEST_F(ReopenedGraph, DoesNoHarmToAnotherStreamsGlobalCapture) {
  owned_stream const capturing = make_stream();
  capture open{capturing, cudaStreamCaptureModeGlobal};
  must(launch_tiny(capturing));
  capture_id const id = id_by_reopening(stream, graph);
  EXPECT_NE(id, open.info().id);
  EXPECT_EQ(id_by_reopening(stream, graph), id);
  EXPECT_TRUE(open.is_active());
  EXPECT_EQ(open.end(), cudaSuccess);
  EXPECT_NE(open.graph().get(), nullptr);
}

}  // namespace
}  // namespace escrow::test
