// Graphs that are built by hand: what waits for what, and how that is looked at.
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>

#include "build_fixture.hpp"
#include "build_graph.hpp"
#include "early_edges.hpp"
#include "escrow/core/error.hpp"

namespace escrow::test {
namespace {

using nodes = std::vector<node>;

// Whether both have the same, in whatever order.
[[nodiscard]] bool same(nodes const& found, nodes const& expected) {
  return std::ranges::is_permutation(found, expected);
}

class BuildEdges : public build_test {};

TEST_F(BuildEdges, AChainIsALine) {
  node const first = add_to(built_, 0, 1);
  node const second = first.add(memset_node(device_.data(), {.width = 1}));
  node const third = second.join();
  EXPECT_TRUE(same(nodes_in(built_), {first, second, third}));
  EXPECT_TRUE(predecessors_of(first).empty());
  EXPECT_EQ(successors_of(first), nodes{second});
  EXPECT_EQ(predecessors_of(second), nodes{first});
  EXPECT_EQ(successors_of(second), nodes{third});
  EXPECT_TRUE(successors_of(third).empty());
  auto const edges = edges_in(built_);
  ASSERT_EQ(edges.size(), 2U);
  EXPECT_EQ(std::ranges::count(edges, std::pair(first, second)), 1);
  EXPECT_EQ(std::ranges::count(edges, std::pair(second, third)), 1);
}

TEST_F(BuildEdges, AGraphAddsNodesThatWaitForNothing) {
  node const first = add_to(built_, 0, 1);
  node const second = add_to(built_, 1, 1);
  EXPECT_TRUE(predecessors_of(second).empty());
  EXPECT_TRUE(edges_in(built_).empty());
  EXPECT_FALSE(first == second);
}

TEST_F(BuildEdges, AJoinWaitsForThePlaceAndForAllOthers) {
  node const first = add_to(built_, 0, 1);
  node const second = add_to(built_, 1, 2);
  node const third = add_to(built_, 2, 3);
  node const joined = first.join({second, third});
  EXPECT_TRUE(same(predecessors_of(joined), {first, second, third}));
  EXPECT_TRUE(same(predecessors_of(first.join({first})), {first}));
  EXPECT_TRUE(same(predecessors_of(build(built_).join({second, third})), {second, third}));
  EXPECT_TRUE(same(predecessors_of(build(built_).join(nodes{third})), {third}));
  EXPECT_TRUE(predecessors_of(build(built_).join()).empty());
  joined.add(kernel_node(copy, {.block = {4}}, cells_.data() + 4, cells_.data(), 4U));
  run(built_);
  EXPECT_EQ(cells_.load(4), 1);
  EXPECT_EQ(cells_.load(5), 2);
  EXPECT_EQ(cells_.load(6), 3);
}

TEST_F(BuildEdges, AfterMakesANodeWaitForAnother) {
  node const late =
      build(built_).add(kernel_node(copy, {.block = {1}}, cells_.data() + 1, cells_.data(), 1U));
  node const early = add_to(built_, 0, 6);
  EXPECT_EQ(&late.after(early), &late);
  EXPECT_EQ(predecessors_of(late), nodes{early});
  EXPECT_EQ(successors_of(early), nodes{late});
  run(built_);
  EXPECT_EQ(cells_.load(1), 6);
}

TEST_F(BuildEdges, OfABodyAreItsOwn) {
  condition const always = build(built_).make_condition(1);
  conditional_node const made = build(built_).add(if_node(always));
  node const first = add_to(made.body(), 0, 1);
  node const second = add_to(made.body(), 1, 1).after(first);
  EXPECT_EQ(nodes_in(built_), nodes{made});
  EXPECT_TRUE(same(nodes_in(made.body()), {first, second}));
  ASSERT_EQ(edges_in(made.body()).size(), 1U);
  EXPECT_EQ(edges_in(made.body())[0], std::pair(first, second));
  EXPECT_TRUE(same(predecessors_of(first.join({second})), {first, second}));
}

TEST_F(BuildEdges, OfACapturedGraphAreSeenAndBuiltUpon) {
  graph captured = escrow::capture(stream_, [&](stream_ref stream) {
    must(launch_add(stream.get(), cells_.data(), 1));
    must(launch_add(stream.get(), cells_.data(), 1));
  });
  nodes const found = nodes_in(captured);
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(type_of(found[0]), cudaGraphNodeTypeKernel);
  EXPECT_EQ(kernel_params_of(found[0]).func, kernel(add).get());
  ASSERT_EQ(edges_in(captured).size(), 1U);
  edges_in(captured)[0].second.add(
      kernel_node(copy, {.block = {1}}, cells_.data() + 1, cells_.data(), 1U));
  run(captured);
  EXPECT_EQ(cells_.load(1), 2);
}

// Those of programmatic dependent launch.
TEST_F(BuildEdges, ThatDoNotWaitForTheEndOfAKernelAreSeenAsOthersAre) {
  for (cudaGraphEdgeData const& edge : early_edges) {
    graph made;
    node const first = add_to(made, 0, 1);
    node const second = add_to(made, 1, 1);
    cudaGraphNode_t from = first.get();
    cudaGraphNode_t to = second.get();
    must(cudaGraphAddDependencies(made.get(), &from, &to, &edge, 1));
    EXPECT_EQ(edges_in(made).size(), 1U);
    EXPECT_EQ(edges_in(made).at(0), std::pair(first, second));
    EXPECT_EQ(successors_of(first), nodes{second});
    EXPECT_EQ(predecessors_of(second), nodes{first});
    graph child;
    add_to(child, 2, 1);
    node const last = build(made).node_of(made.add_child(child));
    EXPECT_TRUE(same(predecessors_of(last), {first, second})) << "it ends last";
    graph const twin = made.clone();
    EXPECT_EQ(edges_in(twin).size(), 3U);
    EXPECT_THROW(second.after(first), cuda_error);
    run(made);
  }
  EXPECT_EQ(cells_.load(2), 3);
}

TEST_F(BuildEdges, AChildWaitsForTheNodesThatHadNoSuccessor) {
  node const first = add_to(built_, 0, 1);
  node const second = first.join();
  node const third = add_to(built_, 1, 1);
  graph child;
  add_to(child, 2, 1);
  node const added = build(built_).node_of(built_.add_child(child));
  EXPECT_TRUE(same(predecessors_of(added), {second, third}));
  EXPECT_EQ(type_of(added), cudaGraphNodeTypeGraph);
}

TEST_F(BuildEdges, ADestroyedNodeIsGoneWithItsEdges) {
  node const first = add_to(built_, 0, 1);
  node const second = add_to(first, 1, 1);
  node const third = add_to(second, 2, 1);
  second.destroy();
  EXPECT_TRUE(same(nodes_in(built_), {first, third}));
  EXPECT_TRUE(edges_in(built_).empty());
  EXPECT_TRUE(successors_of(first).empty());
  run(built_);
  EXPECT_EQ(cells_.load(0), 1);
  EXPECT_EQ(cells_.load(1), 0);
  EXPECT_EQ(cells_.load(2), 1);
}

TEST_F(BuildEdges, StayWithTheGraphWhenItIsMoved) {
  node const first = add_to(built_, 0, 1);
  graph moved_to;
  moved_to = std::move(built_);
  node const second = add_to(first, 0, 2);
  EXPECT_EQ(successors_of(first), nodes{second});
  EXPECT_EQ(nodes_in(moved_to).size(), 2U);
  graph const again = std::move(moved_to);
  run(again);
  EXPECT_EQ(cells_.load(), 3);
}

class WriteDot : public build_test {
 protected:
  WriteDot() = default;
  ~WriteDot() override { std::filesystem::remove(file_); }

  [[nodiscard]] std::string text() const {
    std::ifstream file(file_);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::filesystem::path file_ =
      std::filesystem::path(testing::TempDir()) / ("escrow_build_dot_" + std::to_string(getpid()));
};

std::size_t count(std::string const& text, std::string const& what) {
  std::size_t result = 0;
  for (auto at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++result;
  return result;
}

TEST_F(WriteDot, WritesAnArrowForEachEdge) {
  node const first = add_to(built_, 0, 1);
  static_cast<void>(
      first.join({add_to(built_, 1, 1), first.add(memset_node(device_.data(), {.width = 1}))}));
  built_.write_dot(file_);
  EXPECT_EQ(text().rfind("digraph", 0), 0U) << text();
  EXPECT_EQ(edges_in(built_).size(), 4U);
  EXPECT_EQ(count(text(), "->"), 4U) << text();
  add_to(first, 2, 1);
  built_.write_dot(file_, cudaGraphDebugDotFlagsVerbose);
  EXPECT_GE(count(text(), "->"), 5U) << text();
}

TEST_F(WriteDot, WhereNoFileCanBeIsAnError) {
  add_to(built_, 0, 1);
  try {
    built_.write_dot("/nowhere/at/all.dot");
    FAIL() << "wrote it";
  } catch (cuda_error const& error) {
    EXPECT_EQ(error.status(), cudaErrorOperatingSystem);
    EXPECT_STREQ(error.api(), "cudaGraphDebugDotPrint");
  }
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
}

}  // namespace
}  // namespace escrow::test
