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
  EXPECT_TRUE(same(build(built_).nodes(), {first, second, third}));
  EXPECT_TRUE(first.predecessors().empty());
  EXPECT_EQ(first.successors(), nodes{second});
  EXPECT_EQ(second.predecessors(), nodes{first});
  EXPECT_EQ(second.successors(), nodes{third});
  EXPECT_TRUE(third.successors().empty());
  auto const edges = build(built_).edges();
  ASSERT_EQ(edges.size(), 2U);
  EXPECT_EQ(std::ranges::count(edges, std::pair(first, second)), 1);
  EXPECT_EQ(std::ranges::count(edges, std::pair(second, third)), 1);
}

TEST_F(BuildEdges, AGraphAddsNodesThatWaitForNothing) {
  node const first = add_to(built_, 0, 1);
  node const second = add_to(built_, 1, 1);
  EXPECT_TRUE(second.predecessors().empty());
  EXPECT_TRUE(build(built_).edges().empty());
  EXPECT_FALSE(first == second);
}

TEST_F(BuildEdges, AJoinWaitsForThePlaceAndForAllOthers) {
  node const first = add_to(built_, 0, 1);
  node const second = add_to(built_, 1, 2);
  node const third = add_to(built_, 2, 3);
  node const joined = first.join({second, third});
  EXPECT_TRUE(same(joined.predecessors(), {first, second, third}));
  EXPECT_TRUE(same(first.join({first}).predecessors(), {first}));
  EXPECT_TRUE(same(build(built_).join({second, third}).predecessors(), {second, third}));
  EXPECT_TRUE(same(build(built_).join(nodes{third}).predecessors(), {third}));
  EXPECT_TRUE(build(built_).join().predecessors().empty());
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
  EXPECT_EQ(late.predecessors(), nodes{early});
  EXPECT_EQ(early.successors(), nodes{late});
  run(built_);
  EXPECT_EQ(cells_.load(1), 6);
}

TEST_F(BuildEdges, OfABodyAreItsOwn) {
  condition const always = build(built_).make_condition(1);
  conditional_node const made = build(built_).add(if_node(always));
  node const first = add_to(made.body(), 0, 1);
  node const second = add_to(made.body(), 1, 1).after(first);
  EXPECT_EQ(build(built_).nodes(), nodes{made});
  EXPECT_TRUE(same(made.body().nodes(), {first, second}));
  ASSERT_EQ(made.body().edges().size(), 1U);
  EXPECT_EQ(made.body().edges()[0], std::pair(first, second));
  EXPECT_TRUE(same(first.join({second}).predecessors(), {first, second}));
}

TEST_F(BuildEdges, OfACapturedGraphAreSeenAndBuiltUpon) {
  graph captured = escrow::capture(stream_, [&](stream_ref stream) {
    must(launch_add(stream.get(), cells_.data(), 1));
    must(launch_add(stream.get(), cells_.data(), 1));
  });
  nodes const found = build(captured).nodes();
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[0].type(), cudaGraphNodeTypeKernel);
  EXPECT_EQ(found[0].kernel_parameters().launched, kernel(add));
  ASSERT_EQ(build(captured).edges().size(), 1U);
  build(captured).edges()[0].second.add(
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
    EXPECT_EQ(build(made).edges().size(), 1U);
    EXPECT_EQ(build(made).edges().at(0), std::pair(first, second));
    EXPECT_EQ(first.successors(), nodes{second});
    EXPECT_EQ(second.predecessors(), nodes{first});
    graph child;
    add_to(child, 2, 1);
    node const last = build(made).node_of(made.add_child(child));
    EXPECT_TRUE(same(last.predecessors(), {first, second})) << "it ends last";
    graph const twin = made.clone();
    EXPECT_EQ(build(twin).edges().size(), 3U);
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
  EXPECT_TRUE(same(added.predecessors(), {second, third}));
  EXPECT_EQ(added.type(), cudaGraphNodeTypeGraph);
}

TEST_F(BuildEdges, ADestroyedNodeIsGoneWithItsEdges) {
  node const first = add_to(built_, 0, 1);
  node const second = add_to(first, 1, 1);
  node const third = add_to(second, 2, 1);
  second.destroy();
  EXPECT_TRUE(same(build(built_).nodes(), {first, third}));
  EXPECT_TRUE(build(built_).edges().empty());
  EXPECT_TRUE(first.successors().empty());
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
  EXPECT_EQ(first.successors(), nodes{second});
  EXPECT_EQ(build(moved_to).nodes().size(), 2U);
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
  EXPECT_EQ(build(built_).edges().size(), 4U);
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
