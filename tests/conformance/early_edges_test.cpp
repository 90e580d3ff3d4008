// SPDX-License-Identifier: Apache-2.0
// Edges that do not wait for the end of a kernel: which there are, how captures join them, what
// runs beside the kernel, and that what is behind a programmatic launch waits for the kernel too.
#include <optional>

#include "graph_nodes.hpp"

namespace escrow::test {
namespace {

// Two kernels, with an edge between them.
struct pair_of_kernels {
  pair_of_kernels() = default;
  explicit pair_of_kernels(cudaGraphEdgeData const& edge) { must(add(first, second, &edge)); }

  [[nodiscard]] cudaError_t add(cudaGraphNode_t from, cudaGraphNode_t to,
                                cudaGraphEdgeData const* edge) {
    return tried(cudaGraphAddDependencies(graph, &from, &to, edge, 1));
  }

  owned_graph graph = make_graph();
  cudaGraphNode_t first = add_kernel(graph, tiny_call());
  cudaGraphNode_t second = add_kernel(graph, tiny_call());
};

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

TEST_F(EarlyEdges, LeadFromKernelsAndProgrammaticOnesToKernelsAndAreReadWithTheirData) {
  for (cudaGraphEdgeData const& edge : early_edges) {
    bool const is_programmatic = edge.type == cudaGraphDependencyTypeProgrammatic;
    pair_of_kernels of{edge};
    cudaGraphNode_t one = nullptr;
    cudaGraphNode_t another = nullptr;
    std::size_t count = 1;
    EXPECT_EQ(cudaGraphGetEdges(of.graph, &one, &another, nullptr, &count), cudaErrorLossyQuery);
    EXPECT_EQ(cudaGraphNodeGetDependencies(of.second, &one, nullptr, &count), cudaErrorLossyQuery);
    EXPECT_EQ(cudaGraphNodeGetDependentNodes(of.first, &one, nullptr, &count), cudaErrorLossyQuery);
    must(cudaGraphNodeGetDependentNodes(of.first, nullptr, nullptr, &count));
    EXPECT_EQ(count, 1U);
    cudaGraphEdgeData found{};
    must(cudaGraphNodeGetDependentNodes(of.first, &one, &found, &count));
    EXPECT_EQ(one, of.second);
    EXPECT_TRUE(is_same(found, edge));
    EXPECT_TRUE(is_same(edge_in(of.graph), edge));
    cudaGraphNode_t empty = add_empty(of.graph);
    EXPECT_EQ(of.add(empty, of.second, &edge), cudaErrorInvalidValue);
    EXPECT_EQ(of.add(of.first, empty, &edge),
              is_programmatic ? cudaErrorInvalidValue : cudaSuccess);
    EXPECT_EQ(of.add(of.first, of.second, nullptr), cudaErrorInvalidValue) << "there is one";
    EXPECT_EQ(cudaGraphRemoveDependencies(of.graph, &of.first, &of.second, nullptr, 1),
              cudaSuccess);
  }
}

TEST_F(EarlyEdges, OfOtherPortsAndTypesThereAreNone) {
  for (cudaGraphEdgeData const& edge :
       {edge_of(cudaGraphKernelNodePortProgrammatic, cudaGraphDependencyTypeDefault),
        edge_of(cudaGraphKernelNodePortDefault, cudaGraphDependencyTypeProgrammatic),
        edge_of(3, cudaGraphDependencyTypeDefault), edge_of(1, 2)}) {
    pair_of_kernels of;
    EXPECT_EQ(of.add(of.first, of.second, &edge), cudaErrorInvalidValue);
    capture captured{stream, cudaStreamCaptureModeGlobal};
    must(launch_tiny(stream));
    cudaGraphNode_t kernel = frontier_in(stream).nodes.at(0);
    EXPECT_EQ(cudaStreamUpdateCaptureDependencies(stream, &kernel, &edge, 1,
                                                  cudaStreamSetCaptureDependencies),
              cudaErrorInvalidValue);
    EXPECT_EQ(captured.end(), cudaSuccess);
  }
}

TEST_F(EarlyEdges, InFrontOfACaptureAreItsFrontier) {
  for (cudaGraphEdgeData const& edge : early_edges) {
    capture captured{stream, cudaStreamCaptureModeGlobal};
    must(launch_tiny(stream));
    wait_early(stream, edge);
    EXPECT_TRUE(is_same(frontier_in(stream).edges.at(0), edge));
    EXPECT_EQ(captured.info().error, cudaSuccess) << "the nodes were not asked for";
    cudaStreamCaptureStatus status{};
    cudaGraphNode_t const* nodes = nullptr;
    EXPECT_EQ(tried(cudaStreamGetCaptureInfo(stream, &status, nullptr, nullptr, &nodes, nullptr,
                                             nullptr)),
              cudaErrorLossyQuery);
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
    run(captured.graph().get(), stream);
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
  owned_exec const exec = instantiate(pair_of_kernels{trigger_edge}.graph);
  EXPECT_EQ(update(exec, pair_of_kernels{trigger_edge}.graph), cudaSuccess);
  for (cudaGraphEdgeData const& edge : {full_edge, launch_completion_edge, block_start_edge}) {
    cudaGraphExecUpdateResultInfo info{};
    EXPECT_EQ(tried(cudaGraphExecUpdate(exec, pair_of_kernels{edge}.graph, &info)),
              cudaErrorGraphExecUpdateFailure);
    EXPECT_EQ(info.result, cudaGraphExecUpdateErrorTopologyChanged);
  }
}

void CUDART_CB set(void* cell) {
  static_cast<pinned_ints*>(cell)->store(0, 1);
}

// A kernel that waits for the flag, and one behind it that does not wait for its end.
class BesideAKernel : public testing::Test {
 protected:
  void SetUp() override {
    if (compute_capability() < 9) GTEST_SKIP() << "this GPU launches nothing early";
  }

  void TearDown() override { flag->raise(); }  // the end of an exec may wait for its launch

  // Adds a kernel that waits for the flag, and one behind it that begins early; returns that.
  cudaGraphNode_t add_pair(cudaGraph_t to) {
    return add_early(to, add_kernel(to, wait_flag_call(flag->get())), add_call(early.data(), 1));
  }
  cudaGraphNode_t add_early(cudaGraph_t to, cudaGraphNode_t waiting, kernel_call call) {
    cudaGraphNode_t const result = add_kernel(to, std::move(call));
    must(cudaGraphAddDependencies(to, &waiting, &result, &edge, 1));
    return result;
  }
  cudaGraphNode_t put_behind(cudaGraphNode_t first, cudaGraphNode_t node) {
    must(cudaGraphAddDependencies(graph, &first, &node, nullptr, 1));
    return node;
  }
  [[nodiscard]] kernel_call count_last() { return add_call(last.data(), 1); }
  conditional_node add_if(cudaGraphNode_t behind = nullptr) {
    auto const condition = make_condition(graph, 1);
    return add_conditional_node(graph, condition, cudaGraphCondTypeIf, 1, behind);
  }
  void launch() {
    exec = instantiate(graph);
    must(cudaGraphLaunch(exec, stream));
  }
  // Those behind wait for the flag although so many early ones have run.
  void expect_last_waits(int early_ones, int last_ones) {
    EXPECT_TRUE(wait_until([&] { return early.load() >= early_ones; }));
    EXPECT_TRUE(stays_false([&] { return last.load() != 0; }));
    flag->raise();
    must(cudaStreamSynchronize(stream));
    EXPECT_EQ(last.load(), last_ones);
  }
  void start_afresh() {
    exec.reset();
    graph = make_graph();
    flag.emplace();
    early.store(0, 0);
    last.store(0, 0);
  }

  cudaGraphEdgeData edge = launch_completion_edge;
  pinned_ints early;
  pinned_ints last;
  device_ints filled;
  std::optional<pinned_flag> flag{std::in_place};
  owned_graph graph = make_graph();
  owned_exec exec;
  owned_stream stream = make_stream();
};

TEST_F(BesideAKernel, RunsWhatIsBehindItsBeginning) {
  add_kernel(graph, count_last(), add_pair(graph));
  launch();
  EXPECT_TRUE(wait_until([&] { return early.load(0) == 1 && last.load(0) == 1; }));
  EXPECT_EQ(tried(cudaStreamQuery(stream)), cudaErrorNotReady);
}

// What is behind a launch of either programmatic kind.
using BehindAProgrammaticLaunch = BesideAKernel;

TEST_F(BehindAProgrammaticLaunch, EverythingWaitsForTheKernelInFrontOfThatToo) {
  struct row {
    char const* name;
    std::function<cudaGraphNode_t()> add;  // returns what count_last() is put behind, if anything
    int early_ones = 1;
    int last_ones = 1;
  };
  auto const pair = [&] { return add_pair(graph); };
  auto const fill = fill_params(filled.data(), 1, 4, 1);
  constexpr cudaGraphNode_t none = nullptr;
  std::vector<row> const rows{
      {"a kernel", pair},
      {"a fill", [&] { return add_fill(graph, fill, pair()); }},
      {"an empty node", [&] { return add_empty(graph, pair()); }},
      {"a host function", [&] { return add_host(graph, &set, &last, pair()), none; }},
      {"a child",
       [&] { return put_behind(pair(), add_child(graph, chain({count_last()}))), none; }},
      {"a body", [&] { return add_kernel(add_if(pair()).bodies[0], count_last()), none; }},
      {"a launch of the same kind", [&] { return add_early(graph, pair(), tiny_call()); }},
      {"either of two",
       [&] {
         cudaGraphNode_t const waiting = add_kernel(graph, wait_flag_call(flag->get()));
         auto const one = [&] { return add_early(graph, waiting, add_call(early.data(), 1)); };
         add_kernel(graph, count_last(), one());
         return one();
       },
       2, 2},
      // Whether the launch itself is early then is CUDA's choice (an H200 waits).
      {"one that has another in front",
       [&] { return put_behind(add_kernel(graph, tiny_call()), pair()); }, 0},
      {"a child that has both",
       [&] {
         owned_graph const inner = make_graph();
         add_pair(inner);
         return add_child(graph, inner);
       }},
      {"a body that has both",
       [&] {
         conditional_node const chosen = add_if();
         add_pair(chosen.bodies[0]);
         return chosen.node;
       }},
  };
  for (cudaGraphEdgeData const& kind : {block_start_edge, trigger_edge}) {
    for (row const& each : rows) {
      SCOPED_TRACE(each.name);
      edge = kind;
      cudaGraphNode_t const behind = each.add();
      if (behind != none) add_kernel(graph, count_last(), behind);
      launch();
      expect_last_waits(each.early_ones, each.last_ones);
      start_afresh();
    }
  }
}

}  // namespace
}  // namespace escrow::test
