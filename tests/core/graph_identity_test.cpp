// A graph's id is learned without harm to the graph, to captures, and to the calls of others.
#include "escrow/detail/graph_query.hpp"

#include <gtest/gtest.h>

#include <optional>
#include <set>

#include "build_graph.hpp"
#include "capturing.hpp"
#include "deep.hpp"
#include "escrow/core/error.hpp"
#include "handles.hpp"
#include "synchronizing_thread.hpp"

namespace escrow {
namespace {

using test::must;

class GraphIdentity : public testing::Test {
 protected:
  test::owned_stream stream_ = test::make_stream();
};

TEST_F(GraphIdentity, IsTheIdOfTheCaptureAlsoWhileItGoesOn) {
  for (auto const mode : {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal,
                          cudaStreamCaptureModeRelaxed}) {
    test::capture open{stream_, mode};
    must(test::launch_tiny(stream_));
    test::capture_info const now = open.info();
    EXPECT_EQ(graph_id_of(now.graph), now.id);
    EXPECT_TRUE(open.is_active());
    ASSERT_EQ(open.end(), cudaSuccess);
    EXPECT_EQ(graph_id_of(open.graph()), now.id);
    EXPECT_EQ(test::node_count(open.graph()), 1U);
  }
}

TEST_F(GraphIdentity, IsLearnedDuringAnotherCaptureOfTheThread) {
  test::owned_graph const graph = test::tiny_graph();
  auto const id = graph_id_of(graph);
  test::capture open{stream_, cudaStreamCaptureModeGlobal};
  EXPECT_EQ(graph_id_of(graph), id);
  EXPECT_NE(id, open.info().id);
  EXPECT_TRUE(open.is_active());
  EXPECT_EQ(open.end(), cudaSuccess);
}

TEST_F(GraphIdentity, IsAnotherOneForEachGraphInside) {
  test::owned_graph const graph = test::make_graph();
  test::owned_graph const child = test::tiny_graph();
  cudaGraph_t const embedded = test::embedded_graph(test::add_child(graph, child));
  cudaGraph_t const body = test::add_conditional(graph);
  std::set<std::optional<std::uint64_t>> const ids{graph_id_of(graph), graph_id_of(child),
                                                   graph_id_of(embedded), graph_id_of(body)};
  EXPECT_EQ(ids.size(), 4U);
  EXPECT_FALSE(ids.contains(std::nullopt));
}

TEST_F(GraphIdentity, IsLearnedWithoutChangingTheLastErrorOrTheCaptureMode) {
  test::owned_graph const graph = test::tiny_graph();
  test::thread_mode_scope const thread_local_mode(cudaStreamCaptureModeThreadLocal);
  ASSERT_NE(cudaEventQuery(nullptr), cudaSuccess);
  cudaError_t const earlier = cudaPeekAtLastError();
  EXPECT_TRUE(graph_id_of(graph).has_value());
  EXPECT_EQ(cudaGetLastError(), earlier);
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  must(cudaThreadExchangeStreamCaptureMode(&mode));
  EXPECT_EQ(mode, cudaStreamCaptureModeThreadLocal);
  must(cudaThreadExchangeStreamCaptureMode(&mode));
}

TEST_F(GraphIdentity, OfWhatIsNoGraphIsAnError) {
  EXPECT_THROW(static_cast<void>(graph_id_of(nullptr)), cuda_error);
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
}

TEST_F(GraphIdentity, IsLearnedBesideAThreadThatSynchronizesTheDevice) {
  test::owned_graph const graph = test::tiny_graph();
  auto const id = graph_id_of(graph);
  test::synchronizing_thread other;
  int const asked = test::deep_size(20'000, 100'000);
  int wrong = 0;
  for (int i = 0; i < asked; ++i) {
    try {
      if (graph_id_of(graph) != id) ++wrong;
    } catch (cuda_error const&) {
      ++wrong;
    }
  }
  other.stop();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(other.failed(), 0);
  EXPECT_GT(other.synchronized(), 0);
  EXPECT_EQ(test::node_count(graph), 1U);
  test::owned_exec const exec = test::instantiate(graph);
  EXPECT_EQ(cudaGraphLaunch(exec, stream_), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
}

}  // namespace
}  // namespace escrow
