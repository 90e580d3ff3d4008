// Calls that look: what a pointer points to, how nodes hang together, how DOT shows a graph.
#include <gtest/gtest.h>

#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "build_graph.hpp"
#include "graph_nodes.hpp"
#include "handles.hpp"
#include "memory.hpp"

namespace escrow::test {
namespace {

cudaPointerAttributes attributes_of(void const* address) {
  cudaPointerAttributes result{};
  must(cudaPointerGetAttributes(&result, address));
  return result;
}

TEST(PointerAttributes, OfDeviceMemoryHaveNoHostAddress) {
  device_ints const memory{4};
  auto const found = attributes_of(memory.data() + 1);
  EXPECT_EQ(found.type, cudaMemoryTypeDevice);
  EXPECT_EQ(found.device, 0);
  EXPECT_EQ(found.devicePointer, memory.data() + 1);
  EXPECT_EQ(found.hostPointer, nullptr);
}

TEST(PointerAttributes, OfPinnedMemoryHaveBoth) {
  pinned_ints const memory{4};
  auto const found = attributes_of(memory.data());
  EXPECT_EQ(found.type, cudaMemoryTypeHost);
  EXPECT_EQ(found.device, 0);
  EXPECT_EQ(found.devicePointer, memory.data());
  EXPECT_EQ(found.hostPointer, memory.data());
}

TEST(PointerAttributes, OfOtherMemorySayThatItIsUnregistered) {
  int const local = 0;
  EXPECT_EQ(attributes_of(&local).type, cudaMemoryTypeUnregistered);
}

TEST(PointerAttributes, OfAGraphsMemorySayThatItIsUnregistered) {
  owned_stream const stream = make_stream();
  owned_graph const graph = make_graph();
  auto params = alloc_params(64);
  cudaGraphNode_t allocated = nullptr;
  cudaGraphNode_t freed = nullptr;
  must(cudaGraphAddMemAllocNode(&allocated, graph, nullptr, 0, &params));
  must(cudaGraphAddMemFreeNode(&freed, graph, &allocated, 1, params.dptr));
  EXPECT_EQ(attributes_of(params.dptr).type, cudaMemoryTypeUnregistered);
  owned_exec const exec = instantiate(graph);
  EXPECT_EQ(attributes_of(params.dptr).type, cudaMemoryTypeUnregistered);
  run(exec, stream);
  EXPECT_EQ(attributes_of(params.dptr).type, cudaMemoryTypeUnregistered);
}

TEST(Copies, OfRowsKeepToTheirPitches) {
  int const in[] = {1, 2, 3, 4, 5, 6};
  device_ints const memory{8};
  must(cudaMemcpy2D(memory.data(), 16, in, 12, 8, 2, cudaMemcpyHostToDevice));
  EXPECT_EQ(memory.read(), (std::vector<int>{1, 2, 0, 0, 4, 5, 0, 0}));
}

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
  cudaGraphNode_t from[2]{};
  cudaGraphNode_t to[2]{};
  std::size_t count = 2;
  must(cudaGraphGetEdges(graph, from, to, nullptr, &count));
  EXPECT_EQ(count, 2U);
  EXPECT_EQ(from[0], first);
  EXPECT_EQ(from[1], first);
  EXPECT_EQ((std::set<cudaGraphNode_t>{to[0], to[1]}), (std::set<cudaGraphNode_t>{second, third}));
}

TEST(Edges, ThatAreThereAreNotAddedAndThoseThatAreNotAreNotRemoved) {
  owned_graph const graph = make_graph();
  auto* const first = add_kernel(graph, tiny_call());
  auto* const second = add_kernel(graph, tiny_call(), first);
  EXPECT_NE(tried(cudaGraphAddDependencies(graph, &first, &second, nullptr, 1)), cudaSuccess);
  EXPECT_NE(tried(cudaGraphRemoveDependencies(graph, &second, &first, nullptr, 1)), cudaSuccess);
  EXPECT_EQ(edge_count(graph), 1U);
}

std::size_t count(std::string const& text, std::string const& what) {
  std::size_t result = 0;
  for (auto at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++result;
  return result;
}

TEST(DotPrint, WritesAGraphWithItsKernelsNamesAndAnArrowForEachEdge) {
  owned_graph const graph = chain({tiny_call(), tiny_call(), tiny_call()});
  std::string const path = testing::TempDir() + "escrow_dot_" + std::to_string(getpid());
  ASSERT_EQ(cudaGraphDebugDotPrint(graph, path.c_str(), 0), cudaSuccess);
  std::ifstream file(path);
  std::string const text{std::istreambuf_iterator<char>(file), {}};
  EXPECT_EQ(text.rfind("digraph", 0), 0U) << text;
  EXPECT_EQ(count(text, "->"), 2U) << text;
  EXPECT_GE(count(text, "tiny_kernel"), 3U) << text;
  static_cast<void>(std::remove(path.c_str()));
}

TEST(DotPrint, FailsWhereNoFileCanBe) {
  owned_graph const graph = tiny_graph();
  EXPECT_EQ(tried(cudaGraphDebugDotPrint(graph, "/nowhere/at/all.dot", 0)),
            cudaErrorOperatingSystem);
}

}  // namespace
}  // namespace escrow::test
