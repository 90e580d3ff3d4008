// SPDX-License-Identifier: Apache-2.0
// What identifies a graph: the id of captures into it, which the head of its DOT text has as well.
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <set>

#include "graph_nodes.hpp"

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
  return capture_to_graph(stream, graph, [] {});
}

// A file for the text of graphs; its end removes it.
class dot_file {
 public:
  dot_file() = default;
  dot_file(dot_file const&) = delete;
  dot_file& operator=(dot_file const&) = delete;
  ~dot_file() { static_cast<void>(std::remove(path_.c_str())); }

  [[nodiscard]] std::string text_of(cudaGraph_t graph) const {
    must(cudaGraphDebugDotPrint(graph, path_.c_str(), 0));
    std::ifstream file(path_);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  // The id that the text begins with; 0 if it does not begin as expected.
  [[nodiscard]] capture_id id_of(cudaGraph_t graph) const {
    std::string const text = text_of(graph);
    capture_id cluster = 0;
    capture_id label = 0;
    int const read =
        std::sscanf(text.c_str(), "digraph dot {\nsubgraph cluster_%llu {\nlabel=\"graph_%llu\"",
                    &cluster, &label);
    EXPECT_EQ(read, 2) << text;
    EXPECT_EQ(cluster, label) << text;
    return read == 2 ? cluster : 0;
  }

 private:
  std::string path_ = testing::TempDir() + "escrow_text_" + std::to_string(getpid());
};

TEST(CaptureId, IsEachGraphsOwnAndTheSameInItsTextAndEachTimeThatItIsReopened) {
  dot_file const file;
  owned_stream const stream = make_stream();
  owned_stream const other = make_stream();
  capture_id captured_id = 0;
  owned_graph const captured = capture_tiny(stream, captured_id);
  owned_graph const copy = clone(captured);
  owned_graph const empty = make_graph();
  owned_graph const child = chain({tiny_call(), tiny_call()});
  owned_graph const parent = make_graph();
  cudaGraph_t const embedded = embedded_graph(add_child(parent, child));
  owned_graph const conditional = make_graph();
  cudaGraph_t const body = add_conditional(conditional);
  add_kernel(body, tiny_call());
  std::array<cudaGraph_t, 8> const graphs{captured, copy,     empty,       child,
                                          parent,   embedded, conditional, body};
  std::set<capture_id> ids;
  for (cudaGraph_t const each : graphs) {
    std::size_t const nodes = node_count(each);
    std::size_t const edges = edge_count(each);
    capture_id const id = file.id_of(each);
    EXPECT_TRUE(ids.insert(id).second);
    EXPECT_EQ(id_by_reopening(stream, each), id);
    auto const text_has_it = [&] { EXPECT_EQ(file.id_of(each), id); };
    EXPECT_EQ(capture_to_graph(other, each, text_has_it), id) << "also while it is captured into";
    EXPECT_EQ(file.id_of(each), id);
    EXPECT_EQ(node_count(each), nodes);
    EXPECT_EQ(edge_count(each), edges);
  }
  EXPECT_EQ(file.id_of(captured), captured_id);
  run(child.get(), stream);
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

TEST(ConcurrentCapture, IntoTheSameGraphIsAnIllegalState) {
  std::array const streams{make_stream(), make_stream()};
  owned_graph const graph = make_graph();
  capture_to_graph(streams[0], graph, [&] {
    EXPECT_EQ(tried(cudaStreamBeginCaptureToGraph(streams[1], graph, nullptr, nullptr, 0, relaxed)),
              cudaErrorIllegalState);
  });
}

TEST(CapturedGraph, HasNoNodesOrExtraEdgesForRecordsAndWaitsOnOneStream) {
  owned_stream const stream = make_stream();
  owned_event const event = make_event();
  capture open{stream, cudaStreamCaptureModeGlobal};
  must(launch_tiny(stream));
  for (int i = 0; i < 3; ++i) {
    must(cudaEventRecord(event, stream));
    must(cudaStreamWaitEvent(stream, event, 0));
    must(launch_tiny(stream));
  }
  ASSERT_EQ(open.end(), cudaSuccess);
  EXPECT_EQ(node_count(open.graph()), 4U);
  EXPECT_EQ(edge_count(open.graph()), 3U);
}

TEST(EventOfAnEndedCapture, IsInvalidUntilItIsRecordedEagerly) {
  owned_stream const stream = make_stream();
  owned_stream const other = make_stream();
  owned_event const event = make_event();
  capture open{stream, cudaStreamCaptureModeGlobal};
  must(launch_tiny(stream));
  must(cudaEventRecord(event, stream));
  must(open.end());
  for (bool const graph_exists : {true, false}) {
    if (!graph_exists) open.graph().reset();
    EXPECT_EQ(tried(cudaStreamWaitEvent(other, event, 0)), cudaErrorInvalidValue);
    EXPECT_EQ(tried(cudaEventQuery(event)), cudaErrorInvalidValue);
  }
  EXPECT_EQ(cudaEventRecord(event, other), cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(stream, event, 0), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess);
}

TEST(GraphText, CanBePrintedDuringCapturesOfEachModeFromEachThread) {
  dot_file const file;
  owned_stream const stream = make_stream();
  owned_graph const other = tiny_graph();
  for (auto const mode : all_capture_modes) {
    capture open{stream, mode};
    must(launch_tiny(stream));
    capture_info const now = open.info();
    auto const print_both = [&] {
      EXPECT_EQ(file.id_of(now.graph), now.id);
      EXPECT_NE(file.id_of(other), now.id);
    };
    print_both();
    std::thread(print_both).join();
    EXPECT_TRUE(open.is_active());
    EXPECT_EQ(open.end(), cudaSuccess);
    EXPECT_EQ(node_count(open.graph()), 1U);
  }
}

}  // namespace
}  // namespace escrow::test
