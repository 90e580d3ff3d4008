// SPDX-License-Identifier: Apache-2.0
// The shape of graphs built by hand: edges, and conditional nodes with their bodies.
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "nodes_world.hpp"

namespace escrow::test {
namespace {

using nodes = std::vector<node>;

/// Whether both have the same nodes, in any order.
[[nodiscard]] bool same(nodes const& found, nodes const& expected) {
  return std::ranges::is_permutation(found, expected);
}

class BuildEdges : public nodes_world {};

TEST_F(BuildEdges, ANodeWaitsForThePlaceAndNodesOfTheGraphForNothing) {
  node const first = add_to(*built, 0);
  node const second = first.add(memset_node(device.data(), {.width = 1}));
  node const third = second.join();
  node const alone = add_to(*built, 1);
  EXPECT_TRUE(same(nodes_in(*built), {first, second, third, alone}));
  EXPECT_TRUE(predecessors_of(first).empty());
  EXPECT_EQ(successors_of(first), nodes{second});
  EXPECT_EQ(predecessors_of(third), nodes{second});
  EXPECT_TRUE(predecessors_of(alone).empty());
  EXPECT_EQ(edges_in(*built).size(), 2U);
  EXPECT_FALSE(first == second);
}

TEST_F(BuildEdges, AJoinWaitsForThePlaceAndForAllOthers) {
  node const first = add_to(*built, 0, 1);
  node const second = add_to(*built, 1, 2);
  node const third = add_to(*built, 2, 3);
  node const joined = first.join({second, third});
  EXPECT_EQ(type_of(joined), cudaGraphNodeTypeEmpty);
  EXPECT_TRUE(same(predecessors_of(joined), {first, second, third}));
  EXPECT_TRUE(same(predecessors_of(first.join({second, second, first})), {first, second}));
  EXPECT_TRUE(same(predecessors_of(first.join({first})), {first}));
  EXPECT_TRUE(same(predecessors_of(build(*built).join({second, third})), {second, third}));
  EXPECT_TRUE(predecessors_of(build(*built).join()).empty());
  joined.add(kernel_node(copy, {.block = {4}}, cells.data() + 4, cells.data(), 4U));
  run(*built);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(cells.load(4 + i), static_cast<int>(i) + 1);
}

TEST_F(BuildEdges, AfterMakesANodeWaitForAnother) {
  node const late = build(*built).add(kernel_node(copy, {}, cells.data() + 1, cells.data(), 1U));
  node const early = add_to(*built, 0, 6);
  EXPECT_EQ(&late.after(early), &late);
  run(*built);
  EXPECT_EQ(cells.load(1), 6);
}

TEST_F(BuildEdges, OfACapturedGraphAreSeenAndBuiltUpon) {
  graph source = captured([&](cudaStream_t on) {
    must(launch_add(on, cells.data(), 1));
    must(launch_add(on, cells.data(), 1));
  });
  nodes const found = nodes_in(source);
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(kernel_params_of(found[0]).func, kernel(add).get());
  ASSERT_EQ(edges_in(source).size(), 1U);
  edges_in(source)[0].second.add(kernel_node(copy, {}, cells.data() + 1, cells.data(), 1U));
  run(source);
  EXPECT_EQ(cells.load(1), 2);
}

// Those of programmatic dependent launch.
TEST_F(BuildEdges, ThatDoNotWaitForTheEndOfAKernelAreSeenAsOthersAre) {
  for (cudaGraphEdgeData const& edge : early_edges) {
    graph made(*worker);
    node const first = add_to(made, 0);
    node const second = add_to(made, 1);
    cudaGraphNode_t from = first.get();
    cudaGraphNode_t to = second.get();
    must(cudaGraphAddDependencies(made.get(), &from, &to, &edge, 1));
    EXPECT_EQ(edges_in(made), (edge_list{{first, second}}));
    EXPECT_EQ(predecessors_of(second), nodes{first});
    graph child(*worker);
    add_to(child, 2);
    node const last = build(made).node_of(made.add_child(child));
    EXPECT_TRUE(same(predecessors_of(last), {first, second})) << "it runs last";
    EXPECT_EQ(edges_in(made.clone()).size(), 3U);
    EXPECT_THROW(second.after(first), cuda_error) << "it does already";
    run(made);
  }
  EXPECT_EQ(cells.load(2), 3);
}

TEST_F(BuildEdges, AChildWaitsForTheNodesThatHadNoSuccessor) {
  node const second = add_to(*built, 0).join();
  node const third = add_to(*built, 1);
  graph child(*worker);
  add_to(child, 2);
  node const added = build(*built).node_of(built->add_child(child));
  EXPECT_TRUE(same(predecessors_of(added), {second, third}));
}

TEST_F(BuildEdges, AreWrittenToAFile) {
  auto const file =
      std::filesystem::path(testing::TempDir()) / ("escrow_dot_" + std::to_string(getpid()));
  node const first = add_to(*built, 0);
  static_cast<void>(first.join({add_to(*built, 1), add_to(first, 2)}));
  for (unsigned const flags : {0U, unsigned{cudaGraphDebugDotFlagsVerbose}}) {
    built->write_dot(file, flags);
    std::ifstream written(file);
    std::string const text{std::istreambuf_iterator<char>(written), {}};
    EXPECT_EQ(text.rfind("digraph", 0), 0U) << text;
    EXPECT_NE(text.find("add_kernel"), std::string::npos) << "the kernels' name";
    std::size_t arrows = 0;
    for (auto at = text.find("->"); at != std::string::npos; at = text.find("->", at + 1)) ++arrows;
    EXPECT_GE(arrows, 4U) << text;
    EXPECT_TRUE(arrows == 4U || flags != 0) << text;
  }
  std::filesystem::remove(file);
  expect_error([&] { built->write_dot("/nowhere/at/all.dot"); }, cudaErrorOperatingSystem);
}

class BuildConditions : public nodes_world {
 protected:
  void (*const set_below)(cudaGraphConditionalHandle, int const*, int) =
      function_of<cudaGraphConditionalHandle, int const*, int>(kernel_id::set_condition_below);

  /// Launches with this value in cell 0, to which conditions are set.
  void run_with(graph_exec& exec, int value) {
    cells.store(0, value);
    run(exec);
  }
  [[nodiscard]] std::vector<int> counts() const {
    std::vector<int> result;
    for (std::size_t i = 1; i < cells.size(); ++i) result.push_back(cells.load(i));
    return result;
  }
};

TEST_F(BuildConditions, ChooseTheBodyThatRuns) {
  struct choice {
    conditional_kind (*kind)(condition const&);
    std::vector<int> values;  // of launches
    std::vector<int> runs;    // of each body
  };
  auto* const three_bodies = +[](condition const& chosen) { return switch_node(chosen, 3); };
  for (choice const& each : {choice{&if_node, {0, 1, 7, 0, -1}, {3}},
                             {&if_else_node, {0, 1, 7, 0, 0}, {2, 3}},
                             {three_bodies, {2, 0, 3, 2, -1, 2}, {1, 0, 3}}}) {
    SCOPED_TRACE(each.runs.size());
    for (std::size_t i = 0; i < cells.size(); ++i) cells.store(i, 0);
    graph source(*worker);
    condition const chosen = build(source).make_condition(1);
    conditional_node const made = look(source, chosen, 0).add(each.kind(chosen));
    EXPECT_EQ(type_of(made), cudaGraphNodeTypeConditional);
    ASSERT_EQ(made.bodies().size(), each.runs.size());
    for (std::size_t i = 0; i < each.runs.size(); ++i)
      add_to(made.bodies()[i], static_cast<int>(i) + 1);
    add_to(made, 7);
    graph_exec exec(source);
    EXPECT_TRUE(exec.is_bare());
    for (int const value : each.values) run_with(exec, value);
    std::vector<int> expected = each.runs;
    expected.resize(6);
    expected.push_back(static_cast<int>(each.values.size()));
    EXPECT_EQ(counts(), expected);
  }
}

TEST_F(BuildConditions, OfAWhileRunItsBodyAsLongAsTheyAreSet) {
  condition const chosen = build(*built).make_condition(0);
  conditional_node const made = look(*built, chosen, 0).add(while_node(chosen));
  EXPECT_EQ(made.bodies().size(), 1U);
  add_to(made.body(), 1).add(kernel_node(set_below, {}, chosen.get(), cells.data() + 1, 10));
  graph_exec exec(*built);
  for (auto const& [value, count] : {std::pair{0, 0}, {1, 10}, {1, 11}}) {
    run_with(exec, value);
    EXPECT_EQ(cells.load(1), count);
  }
}

TEST_F(BuildConditions, OfBodiesInBodiesChooseToo) {
  condition const outer = build(*built).make_condition(1);
  body_graph const loop = build(*built).add(while_node(outer)).body();
  condition const is_low = loop.make_condition(0);
  // Rounds 1 to 6: two in the switch of the first body, then four in the if of the second.
  node const counted =
      add_to(loop, 0).add(kernel_node(set_below, {}, is_low.get(), cells.data(), 3));
  conditional_node const choice = counted.add(if_else_node(is_low));
  condition const round = choice.body().make_condition(0);
  conditional_node const cases = look(choice.body(), round, 0).add(switch_node(round, 3));
  for (int i = 0; i < 3; ++i) add_to(cases.bodies()[static_cast<std::size_t>(i)], 1 + i);
  condition const always = choice.otherwise().make_condition(1);
  add_to(choice.otherwise().add(if_node(always)).body(), 4);
  choice.add(kernel_node(set_below, {}, outer.get(), cells.data(), 6));
  graph_exec exec(*built);
  EXPECT_TRUE(exec.is_bare());
  for (int i = 1; i <= 3; ++i) {
    run_with(exec, 0);
    EXPECT_EQ(counts(), (std::vector<int>{0, i, i, 4 * i, 0, 0, 0}));
  }
}

TEST_F(BuildConditions, ABodyKeepsItsGraphAliveWithAllItsNodes) {
  std::optional<body_graph> body;
  node made;
  {
    graph source(*worker);
    condition const always = build(source).make_condition(1);
    conditional_node const with_body = build(source).add(if_node(always));
    made = with_body;
    body = with_body.body();
  }
  node const inner = add_to(*body, 0);
  EXPECT_EQ(nodes_in(*body).at(0), inner);
  EXPECT_EQ(predecessors_of(add_to(made, 1)).at(0), made);
  body.reset();
  EXPECT_THROW(static_cast<void>(made.join()), usage_error);
  EXPECT_THROW(static_cast<void>(inner.join()), usage_error);
}

TEST_F(BuildConditions, AConditionalNodeDoesNotKeepItsGraph) {
  fate_ptr const fate = make_fate();
  std::optional<conditional_node> loop;
  {
    graph source(*worker);
    condition const always = build(source).make_condition(1);
    loop.emplace(build(source).add(if_node(always)));
    loop->body().add(host_node([owner = std::make_shared<probe>(fate)] {}));
  }
  EXPECT_TRUE(wait_until([&] { return fate->was_destroyed(); }));
  EXPECT_THROW(static_cast<void>(loop->body().join()), usage_error);
}

TEST_F(BuildConditions, ABodyIsAPlaceOfTheGraphThatItsGraphWasMovedTo) {
  condition const always = build(*built).make_condition(1);
  body_graph const body = build(*built).add(if_node(always)).body();
  graph moved_to = std::move(*built);
  add_to(body, 0, 3);
  run(moved_to);
  EXPECT_EQ(cells.load(), 3);
  owned_graph const detached(moved_to.detach());
  EXPECT_THROW(static_cast<void>(body.get()), usage_error);
  EXPECT_THROW(add_to(body, 0, 3), usage_error);
}

}  // namespace
}  // namespace escrow::test
