// Edges that do not wait for the end of a kernel: which there are, and how captures join them.
#include "early_edges.hpp"

#include <gtest/gtest.h>

#include "build_graph.hpp"
#include "capturing.hpp"
#include "handles.hpp"
#include "memory.hpp"

namespace escrow::test {
namespace {

class EarlyEdges : public testing::Test {
 protected:
  // The only edge there is.
  [[nodiscard]] static cudaGraphEdgeData edge_in(cudaGraph_t graph) {
    cudaGraphNode_t from = nullptr;
    cudaGraphNode_t to = nullptr;
    cudaGraphEdgeData edge{};
    std::size_t count = 1;
    EXPECT_EQ(edge_count(graph), 1U);
    must(cudaGraphGetEdges(graph, &from, &to, &edge, &count));
    return edge;
  }
  // The frontier of a stream once both edges were asked for, behind the same kernel.
  [[nodiscard]] cudaGraphEdgeData joined(cudaGraphEdgeData const& one,
                                         cudaGraphEdgeData const& another) {
    capture const captured{stream, cudaStreamCaptureModeGlobal};
    must(launch_tiny(stream));
    wait_early(stream, one);
    cudaGraphNode_t kernel = frontier_in(stream).nodes.at(0);
    must(cudaStreamUpdateCaptureDependencies(stream, &kernel, &another, 1,
                                             cudaStreamAddCaptureDependencies));
    placed_edges const found = frontier_in(stream);
    EXPECT_EQ(found.nodes.size(), 1U);
    return found.edges.at(0);
  }

  device_ints cells{1};
  owned_stream stream = make_stream();
  owned_stream other = make_stream();
};

TEST_F(EarlyEdges, LeadFromKernelsAndProgrammaticOnesToKernels) {
  for (cudaGraphEdgeData const& edge : early_edges) {
    bool const is_programmatic = edge.type == cudaGraphDependencyTypeProgrammatic;
    owned_graph const graph = make_graph();
    cudaGraphNode_t first = add_kernel(graph, tiny_call());
    cudaGraphNode_t second = add_kernel(graph, tiny_call());
    cudaGraphNode_t empty = nullptr;
    must(cudaGraphAddEmptyNode(&empty, graph, nullptr, 0));
    EXPECT_EQ(cudaGraphAddDependencies(graph, &empty, &second, &edge, 1), cudaErrorInvalidValue);
    EXPECT_EQ(cudaGraphAddDependencies(graph, &first, &empty, &edge, 1),
              is_programmatic ? cudaErrorInvalidValue : cudaSuccess);
    EXPECT_EQ(cudaGraphAddDependencies(graph, &first, &second, &edge, 1), cudaSuccess);
    EXPECT_EQ(cudaGraphAddDependencies(graph, &first, &second, nullptr, 1), cudaErrorInvalidValue)
        << "there is one already";
    EXPECT_EQ(cudaGraphRemoveDependencies(graph, &first, &second, nullptr, 1), cudaSuccess);
  }
}

TEST_F(EarlyEdges, OfOtherPortsAndTypesThereAreNone) {
  for (cudaGraphEdgeData const& edge :
       {edge_of(cudaGraphKernelNodePortProgrammatic, cudaGraphDependencyTypeDefault),
        edge_of(cudaGraphKernelNodePortDefault, cudaGraphDependencyTypeProgrammatic),
        edge_of(3, cudaGraphDependencyTypeDefault), edge_of(1, 2)}) {
    owned_graph const graph = make_graph();
    cudaGraphNode_t first = add_kernel(graph, tiny_call());
    cudaGraphNode_t second = add_kernel(graph, tiny_call());
    EXPECT_EQ(cudaGraphAddDependencies(graph, &first, &second, &edge, 1), cudaErrorInvalidValue);
    capture captured{stream, cudaStreamCaptureModeGlobal};
    must(launch_tiny(stream));
    cudaGraphNode_t kernel = frontier_in(stream).nodes.at(0);
    EXPECT_EQ(cudaStreamUpdateCaptureDependencies(stream, &kernel, &edge, 1,
                                                  cudaStreamSetCaptureDependencies),
              cudaErrorInvalidValue);
    EXPECT_EQ(captured.end(), cudaSuccess);
  }
}

TEST_F(EarlyEdges, CannotBeReadWithoutTheirData) {
  for (cudaGraphEdgeData const& edge : early_edges) {
    owned_graph const graph = make_graph();
    cudaGraphNode_t first = add_kernel(graph, tiny_call());
    cudaGraphNode_t second = add_kernel(graph, tiny_call());
    must(cudaGraphAddDependencies(graph, &first, &second, &edge, 1));
    cudaGraphNode_t one = nullptr;
    cudaGraphNode_t another = nullptr;
    std::size_t count = 1;
    EXPECT_EQ(cudaGraphGetEdges(graph, &one, &another, nullptr, &count), cudaErrorLossyQuery);
    EXPECT_EQ(cudaGraphNodeGetDependencies(second, &one, nullptr, &count), cudaErrorLossyQuery);
    EXPECT_EQ(cudaGraphNodeGetDependentNodes(first, &one, nullptr, &count), cudaErrorLossyQuery);
    static_cast<void>(cudaGetLastError());
    must(cudaGraphNodeGetDependentNodes(first, nullptr, nullptr, &count));
    EXPECT_EQ(count, 1U);
    cudaGraphEdgeData found{};
    must(cudaGraphNodeGetDependentNodes(first, &one, &found, &count));
    EXPECT_EQ(one, second);
    EXPECT_TRUE(is_same(found, edge));
    EXPECT_TRUE(is_same(edge_in(graph), edge));
  }
}

TEST_F(EarlyEdges, InFrontOfACaptureAreItsFrontier) {
  for (cudaGraphEdgeData const& edge : early_edges) {
    capture captured{stream, cudaStreamCaptureModeGlobal};
    must(launch_tiny(stream));
    wait_early(stream, edge);
    EXPECT_TRUE(is_same(frontier_in(stream).edges.at(0), edge));
    EXPECT_EQ(captured.info().error, cudaSuccess) << "nobody asked for the nodes";
    cudaStreamCaptureStatus status{};
    cudaGraphNode_t const* nodes = nullptr;
    EXPECT_EQ(cudaStreamGetCaptureInfo(stream, &status, nullptr, nullptr, &nodes, nullptr, nullptr),
              cudaErrorLossyQuery);
    static_cast<void>(cudaGetLastError());
    owned_event const event = make_event();
    must(cudaEventRecord(event, stream));
    must(cudaStreamWaitEvent(other, event));
    EXPECT_TRUE(is_same(frontier_in(other).edges.at(0), edge)) << "a fork waits for as little";
    must(cudaMemsetAsync(cells.data(), 0, sizeof(int), stream));
    EXPECT_TRUE(is_same(frontier_in(stream).edges.at(0), full_edge));
    must(cudaEventRecord(event, other));
    must(cudaStreamWaitEvent(stream, event));
    ASSERT_EQ(captured.end(), cudaSuccess);
    EXPECT_TRUE(is_same(edge_in(captured.graph()), edge)) << "whatever is behind it";
    EXPECT_EQ(cudaGraphLaunch(instantiate(captured.graph()), stream), cudaSuccess);
    must(cudaStreamSynchronize(stream));
  }
}

TEST_F(EarlyEdges, OfOneKernelAreJoinedToThatWhichWaitsForMost) {
  EXPECT_TRUE(is_same(joined(full_edge, launch_completion_edge), full_edge));
  EXPECT_TRUE(is_same(joined(launch_completion_edge, full_edge), full_edge));
  EXPECT_TRUE(is_same(joined(launch_completion_edge, trigger_edge), trigger_edge));
  EXPECT_TRUE(is_same(joined(trigger_edge, block_start_edge), trigger_edge));
}

TEST_F(EarlyEdges, AreMadeByProgrammaticLaunchesWhateverTheFrontierWaitedFor) {
  for (cudaGraphEdgeData const& edge :
       {full_edge, launch_completion_edge, block_start_edge, trigger_edge}) {
    capture captured{stream, cudaStreamCaptureModeGlobal};
    must(launch_tiny(stream));
    wait_early(stream, edge);
    must(launch_programmatically(stream));
    EXPECT_TRUE(is_same(frontier_in(stream).edges.at(0), full_edge));
    ASSERT_EQ(captured.end(), cudaSuccess);
    EXPECT_TRUE(is_same(edge_in(captured.graph()), trigger_edge));
  }
}

TEST_F(EarlyEdges, AreWhatAnUpdateOfAnExecMustHaveToo) {
  auto const pair_of = [](cudaGraphEdgeData const& edge) {
    owned_graph graph = make_graph();
    cudaGraphNode_t first = add_kernel(graph, tiny_call());
    cudaGraphNode_t second = add_kernel(graph, tiny_call());
    must(cudaGraphAddDependencies(graph, &first, &second, &edge, 1));
    return graph;
  };
  owned_exec const exec = instantiate(pair_of(trigger_edge));
  cudaGraphExecUpdateResultInfo info{};
  EXPECT_EQ(cudaGraphExecUpdate(exec, pair_of(trigger_edge), &info), cudaSuccess);
  for (cudaGraphEdgeData const& edge : {full_edge, launch_completion_edge, block_start_edge}) {
    EXPECT_EQ(cudaGraphExecUpdate(exec, pair_of(edge), &info), cudaErrorGraphExecUpdateFailure);
    EXPECT_EQ(info.result, cudaGraphExecUpdateErrorTopologyChanged);
  }
  static_cast<void>(cudaGetLastError());
}

}  // namespace
}  // namespace escrow::test
