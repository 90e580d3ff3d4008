// The head of a graph's DOT text names the graph by the id of captures into it, and printing it
// harms nothing.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include "build_graph.hpp"
#include "capturing.hpp"
#include "handles.hpp"

namespace escrow::test {
namespace {

using capture_id = unsigned long long;

class GraphText : public testing::Test {
 protected:
  ~GraphText() override { static_cast<void>(std::remove(path_.c_str())); }

  // The id that the text begins with; 0 if it does not begin as expected.
  capture_id id_in_text(cudaGraph_t graph) {
    must(cudaGraphDebugDotPrint(graph, path_.c_str(), 0));
    std::ifstream file(path_);
    std::string const text{std::istreambuf_iterator<char>(file), {}};
    capture_id cluster = 0;
    capture_id label = 0;
    int const read =
        std::sscanf(text.c_str(), "digraph dot {\nsubgraph cluster_%llu {\nlabel=\"graph_%llu\"",
                    &cluster, &label);
    EXPECT_EQ(read, 2) << text;
    EXPECT_EQ(cluster, label) << text;
    return read == 2 ? cluster : 0;
  }

  // The id that a capture into the graph reports.
  capture_id id_of_capture_into(cudaGraph_t graph) {
    must(cudaStreamBeginCaptureToGraph(stream_, graph, nullptr, nullptr, 0,
                                       cudaStreamCaptureModeRelaxed));
    capture_id const id = info_of(stream_).id;
    cudaGraph_t ended = nullptr;
    must(cudaStreamEndCapture(stream_, &ended));
    return id;
  }

  owned_graph capture_tiny(capture_id& id) {
    capture open{stream_, cudaStreamCaptureModeRelaxed};
    must(launch_tiny(stream_));
    id = open.info().id;
    must(open.end());
    return std::move(open.graph());
  }

  std::string path_ = testing::TempDir() + "escrow_text_" + std::to_string(getpid());
  owned_stream stream_ = make_stream();
};

TEST_F(GraphText, OfACapturedGraphHasItsCapturesId) {
  capture_id id = 0;
  owned_graph const graph = capture_tiny(id);
  EXPECT_EQ(id_in_text(graph), id);
}

TEST_F(GraphText, HasTheSameIdAfterAnotherCaptureIntoTheGraph) {
  capture_id id = 0;
  owned_graph const graph = capture_tiny(id);
  must(cudaStreamBeginCaptureToGraph(stream_, graph, nullptr, nullptr, 0,
                                     cudaStreamCaptureModeRelaxed));
  must(launch_tiny(stream_));
  EXPECT_EQ(info_of(stream_).id, id);
  EXPECT_EQ(id_in_text(graph), id);
  cudaGraph_t ended = nullptr;
  must(cudaStreamEndCapture(stream_, &ended));
  EXPECT_EQ(id_in_text(graph), id);
}

TEST_F(GraphText, OfACreatedGraphHasTheIdOfTheFirstCaptureInto) {
  owned_graph const empty = make_graph();
  capture_id const id = id_in_text(empty);
  EXPECT_EQ(id_of_capture_into(empty), id);
  owned_graph const built = tiny_graph();
  EXPECT_NE(id_in_text(built), id);
  EXPECT_EQ(id_of_capture_into(built), id_in_text(built));
}

TEST_F(GraphText, OfACloneHasTheClonesOwnId) {
  capture_id id = 0;
  owned_graph const graph = capture_tiny(id);
  owned_graph const copy = clone(graph);
  capture_id const id_of_copy = id_in_text(copy);
  EXPECT_NE(id_of_copy, id);
  EXPECT_EQ(id_of_capture_into(copy), id_of_copy);
  EXPECT_EQ(id_in_text(graph), id);
}

TEST_F(GraphText, OfAnEmbeddedGraphHasTheEmbeddedGraphsOwnId) {
  owned_graph const child = tiny_graph();
  owned_graph const graph = make_graph();
  cudaGraph_t const embedded = embedded_graph(add_child(graph, child));
  capture_id const id = id_in_text(embedded);
  EXPECT_NE(id, id_in_text(child));
  EXPECT_NE(id, id_in_text(graph));
  EXPECT_EQ(id_of_capture_into(embedded), id);
  EXPECT_EQ(id_of_capture_into(graph), id_in_text(graph));
}

TEST_F(GraphText, OfABodyHasTheBodysOwnId) {
  owned_graph const graph = make_graph();
  cudaGraph_t const body = add_conditional(graph);
  add_kernel(body, tiny_call());
  capture_id const id = id_in_text(body);
  EXPECT_NE(id, id_in_text(graph));
  EXPECT_EQ(id_of_capture_into(body), id);
  EXPECT_EQ(id_of_capture_into(graph), id_in_text(graph));
}

TEST_F(GraphText, CanBePrintedDuringCapturesOfEachModeFromEachThread) {
  owned_graph const other = tiny_graph();
  for (auto const mode : {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal,
                          cudaStreamCaptureModeRelaxed}) {
    capture open{stream_, mode};
    must(launch_tiny(stream_));
    capture_info const now = open.info();
    auto const print_both = [&] {
      EXPECT_EQ(id_in_text(now.graph), now.id);
      EXPECT_NE(id_in_text(other), now.id);
    };
    print_both();
    std::thread(print_both).join();
    EXPECT_TRUE(open.is_active());
    EXPECT_EQ(open.end(), cudaSuccess);
    EXPECT_EQ(node_count(open.graph()), 1U);
  }
}

TEST_F(GraphText, IsPrintedWithoutChangingTheLastError) {
  owned_graph const graph = tiny_graph();
  ASSERT_NE(cudaEventQuery(nullptr), cudaSuccess);
  cudaError_t const earlier = cudaPeekAtLastError();
  ASSERT_NE(earlier, cudaSuccess);
  static_cast<void>(id_in_text(graph));
  EXPECT_EQ(cudaGetLastError(), earlier);
}

}  // namespace
}  // namespace escrow::test
