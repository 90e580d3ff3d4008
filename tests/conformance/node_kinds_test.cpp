// What each kind of node does when it runs, by its own call, and edges; nodes by the call for all
// kinds are in tests/nodes.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <set>
#include <vector>

#include "build_graph.hpp"
#include "graph_nodes.hpp"
#include "memory.hpp"

namespace escrow::test {
namespace {

void CUDART_CB count_up(void* counter) {
  static_cast<std::atomic<int>*>(counter)->fetch_add(1);
}

class NodeKinds : public testing::Test {
 protected:
  std::atomic<int> calls{0};  // of count_up
  owned_event event = make_event();
  owned_stream stream = make_stream();
  owned_graph graph = make_graph();
};

TEST_F(NodeKinds, ACopyOfRowsKeepsToPitchesAndPositions) {
  device_ints const from{8};
  device_ints const to{6};
  must(launch_fill(stream, from.data(), 8, 3));
  must(launch_fill(stream, from.data() + 5, 1, 9));
  // Two rows of two out of rows of four, into rows of three at column 1.
  auto params =
      copy_params(to.data(), 3 * sizeof(int), from.data(), 4 * sizeof(int), 2 * sizeof(int), 2);
  params.srcPos.x = sizeof(int);
  params.dstPos.x = sizeof(int);
  add_node(cudaGraphAddMemcpyNode, graph, nullptr, &params);
  run(graph, stream);
  EXPECT_EQ(to.read(), (std::vector<int>{0, 3, 3, 0, 9, 3}));
  auto const wide = copy_params(from.data(), 4, from.data() + 4, 4, 8, 2);
  cudaGraphNode_t node = nullptr;
  EXPECT_NE(tried(cudaGraphAddMemcpyNode(&node, graph, nullptr, 0, &wide)), cudaSuccess);
  int const in[] = {1, 2, 3, 4, 5, 6};
  device_ints const memory{8};
  must(cudaMemcpy2D(memory.data(), 16, in, 12, 8, 2, cudaMemcpyHostToDevice));
  EXPECT_EQ(memory.read(), (std::vector<int>{1, 2, 0, 0, 4, 5, 0, 0}));
}

TEST_F(NodeKinds, NodesOfMostKindsRunInAChildGraph) {
  device_ints const memory{2};
  pinned_ints out{2};
  owned_graph const child = make_graph();
  auto* const filled = add_fill(child, fill_params(memory.data(), 4, 4, 2));
  auto* const copied = add_copy(child, out.data(), memory.data(), 2 * sizeof(int), filled);
  add_host(child, &count_up, &calls, copied);
  add_child(graph, child);
  owned_exec const exec = instantiate(graph);
  run(exec, stream);
  EXPECT_EQ(out.load(1), 4);
  EXPECT_EQ(calls, 1);
  run(exec, stream);
  EXPECT_EQ(calls, 2);
}

TEST_F(NodeKinds, ANodeOfEachKindCanBeDestroyedAndTheRestRuns) {
  device_ints const memory{4};
  std::array const doomed{add_fill(graph, fill_params(memory.data(), 1, 4, 4)),
                          add_copy(graph, memory.data(), memory.data() + 2, 8),
                          add_kernel(graph, add_call(memory.data(), 1)),
                          add_child(graph, tiny_graph()),
                          add_empty(graph),
                          add_host(graph, &count_up, &calls),
                          add_record(graph, event),
                          add_wait(graph, event)};
  std::size_t count = doomed.size();
  std::vector<cudaGraphNode_t> all(count);
  must(cudaGraphGetNodes(graph, all.data(), &count));
  EXPECT_EQ((std::set<cudaGraphNode_t>(all.begin(), all.end())),
            (std::set<cudaGraphNode_t>(doomed.begin(), doomed.end())));
  auto* const kept = add_kernel(graph, add_call(memory.data() + 3, 5), doomed[0]);
  for (auto* const each : all) EXPECT_EQ(cudaGraphDestroyNode(each), cudaSuccess);
  EXPECT_EQ(node_count(graph), 1U);
  cudaGraphNode_t left = nullptr;
  count = 1;
  must(cudaGraphGetRootNodes(graph, &left, &count));
  EXPECT_EQ(left, kept);
  run(graph, stream);
  EXPECT_EQ(memory.read(), (std::vector<int>{0, 0, 0, 5}));
}

TEST_F(NodeKinds, KernelsAndFillsCanBeDisabledInAnExecAndThenDoNothing) {
  device_ints const memory{4};
  pinned_ints pinned{2};
  auto* const first = add_kernel(graph, add_call(pinned.data(), 1));
  auto* const second = add_kernel(graph, add_call(pinned.data() + 1, 1), first);
  auto* const fill = add_fill(graph, fill_params(memory.data(), 3, 4, 1));
  auto* const empty = add_empty(graph);
  owned_exec const exec = instantiate(graph);
  auto const is_enabled = [&](cudaGraphNode_t node) {
    unsigned result = 0;
    must(cudaGraphNodeGetEnabled(exec, node, &result));
    return result == 1;
  };
  EXPECT_TRUE(is_enabled(first));
  EXPECT_EQ(cudaGraphNodeSetEnabled(exec, first, 0), cudaSuccess);
  EXPECT_EQ(cudaGraphNodeSetEnabled(exec, fill, 0), cudaSuccess);
  EXPECT_NE(tried(cudaGraphNodeSetEnabled(exec, empty, 0)), cudaSuccess);
  EXPECT_FALSE(is_enabled(first));
  EXPECT_TRUE(is_enabled(second));
  run(exec, stream);
  EXPECT_EQ(pinned.load(0), 0);
  EXPECT_EQ(pinned.load(1), 1);
  EXPECT_EQ(memory.read(), (std::vector<int>{0, 0, 0, 0}));
  EXPECT_EQ(cudaGraphNodeSetEnabled(exec, first, 1), cudaSuccess);
  run(exec, stream);
  EXPECT_EQ(pinned.load(0), 1);
}

#if CUDART_VERSION >= 12090  // the first with ownership
TEST_F(NodeKinds, AGraphThatIsMovedIntoItsParentBelongsToIt) {
  pinned_ints cell;
  owned_graph child = chain({add_call(cell.data(), 1)});
  auto p = params_of(cudaGraphNodeTypeGraph);
  p.graph.graph = child;
  p.graph.ownership = cudaGraphChildGraphOwnershipMove;
  auto* const node = add_any(graph, p);
  EXPECT_EQ(embedded_graph(node), child.get());
  owned_graph const another = make_graph();
  cudaGraphNode_t second = nullptr;
  EXPECT_NE(tried(cudaGraphAddNode(&second, another, nullptr, nullptr, 0, &p)), cudaSuccess);
  EXPECT_NE(status_of_instantiation(child), cudaSuccess);
  EXPECT_NE(tried(cudaGraphDestroy(child.release())), cudaSuccess);
  run(graph, stream);
  EXPECT_EQ(cell.load(), 1);
}
#endif

// The nodes that a call lists which takes an array, room for data of edges and a count.
template <class List>
std::vector<cudaGraphNode_t> listed(List list) {
  std::size_t count = 0;
  must(list(nullptr, nullptr, &count));
  std::vector<cudaGraphNode_t> result(count);
  std::vector<cudaGraphEdgeData> edges(count);
  must(list(result.data(), edges.data(), &count));
  for (auto const& edge : edges) EXPECT_EQ(edge.type, 0);
  return result;
}

TEST(Edges, AreListedFromBothEndsAndAddedAndRemoved) {
  owned_graph const graph = make_graph();
  auto* const first = add_kernel(graph, tiny_call());
  auto* const second = add_kernel(graph, tiny_call(), first);
  auto* const third = add_kernel(graph, tiny_call(), second);
  ASSERT_EQ(cudaGraphAddDependencies(graph, &first, &third, nullptr, 1), cudaSuccess);
  using nodes = std::vector<cudaGraphNode_t>;
  auto const before = [](cudaGraphNode_t node) {
    return listed([&](auto... out) { return cudaGraphNodeGetDependencies(node, out...); });
  };
  EXPECT_EQ(before(third), (nodes{second, first}));
  EXPECT_EQ(listed([&](auto... out) { return cudaGraphNodeGetDependentNodes(first, out...); }),
            (nodes{second, third}));
  EXPECT_EQ(edge_count(graph), 3U);
  ASSERT_EQ(cudaGraphRemoveDependencies(graph, &second, &third, nullptr, 1), cudaSuccess);
  EXPECT_EQ(before(third), nodes{first});
  // Those that exist are not added, and those that do not are not removed.
  EXPECT_NE(tried(cudaGraphAddDependencies(graph, &first, &second, nullptr, 1)), cudaSuccess);
  EXPECT_NE(tried(cudaGraphRemoveDependencies(graph, &second, &first, nullptr, 1)), cudaSuccess);
  nodes from(2);
  nodes to(2);
  std::size_t count = 2;
  must(cudaGraphGetEdges(graph, from.data(), to.data(), nullptr, &count));
  EXPECT_EQ(count, 2U);
  EXPECT_EQ(from, (nodes{first, first}));
  EXPECT_TRUE(to == (nodes{second, third}) || to == (nodes{third, second}));
}

}  // namespace
}  // namespace escrow::test
