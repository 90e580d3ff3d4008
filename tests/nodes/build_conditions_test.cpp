// Graphs that are built by hand with conditional nodes: which bodies run, and how long they live.
#include <array>
#include <optional>
#include <vector>

#include "build_fixture.hpp"
#include "escrow/core/error.hpp"

namespace escrow::test {
namespace {

class BuildConditions : public build_test {
 protected:
  // Launches with this in cell 0, which conditions are set to.
  void run_with(graph_exec& exec, int value) {
    cells_.store(0, value);
    run(exec);
  }
  [[nodiscard]] std::vector<int> all() const {
    std::vector<int> result;
    for (std::size_t i = 0; i < cells_.size(); ++i) result.push_back(cells_.load(i));
    return result;
  }
};

TEST_F(BuildConditions, AnIfRunsItsBodyForAnyValueButZero) {
  condition const chosen = build(built_).make_condition(0);
  conditional_node const made = look(built_, chosen, 0).add(if_node(chosen));
  EXPECT_EQ(type_of(made), cudaGraphNodeTypeConditional);
  EXPECT_EQ(made.bodies().size(), 1U);
  add_to(made.body(), 1, 1);
  add_to(made, 2, 1);
  graph_exec exec(built_);
  EXPECT_TRUE(exec.is_bare());
  for (int const value : {0, 1, 7, 0, -1}) run_with(exec, value);
  EXPECT_EQ(cells_.load(1), 3);
  EXPECT_EQ(cells_.load(2), 5);
}

TEST_F(BuildConditions, AnIfElseRunsOneOfItsBodies) {
  condition const chosen = build(built_).make_condition(1);
  conditional_node const made = look(built_, chosen, 0).add(if_else_node(chosen));
  EXPECT_EQ(type_of(made), cudaGraphNodeTypeConditional);
  ASSERT_EQ(made.bodies().size(), 2U);
  add_to(made.body(), 1, 1);
  add_to(made.otherwise(), 2, 1);
  graph_exec exec(built_);
  for (int const value : {0, 1, 7, 0, 0}) run_with(exec, value);
  EXPECT_EQ(cells_.load(1), 2);
  EXPECT_EQ(cells_.load(2), 3);
}

TEST_F(BuildConditions, AWhileRunsItsBodyAsLongAsTheConditionIsSet) {
  condition const chosen = build(built_).make_condition(0);
  conditional_node const made = look(built_, chosen, 0).add(while_node(chosen));
  EXPECT_EQ(type_of(made), cudaGraphNodeTypeConditional);
  EXPECT_EQ(made.bodies().size(), 1U);
  add_to(made.body(), 1, 1)
      .add(kernel_node(set_condition_below, {}, chosen.get(), cells_.data() + 1, 10));
  graph_exec exec(built_);
  run_with(exec, 0);
  EXPECT_EQ(cells_.load(1), 0);
  run_with(exec, 1);
  EXPECT_EQ(cells_.load(1), 10);
  run_with(exec, 1);
  EXPECT_EQ(cells_.load(1), 11);
}

TEST_F(BuildConditions, ASwitchRunsTheBodyOfThatNumberOrNone) {
  condition const chosen = build(built_).make_condition(0);
  conditional_node const made = look(built_, chosen, 0).add(switch_node(chosen, 3));
  EXPECT_EQ(type_of(made), cudaGraphNodeTypeConditional);
  ASSERT_EQ(made.bodies().size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) add_to(made.bodies()[i], i + 1, 1);
  graph_exec exec(built_);
  EXPECT_TRUE(exec.is_bare());
  for (int const value : {2, 0, 3, 2, -1, 2}) run_with(exec, value);
  EXPECT_EQ(all(), (std::vector<int>{2, 1, 0, 3, 0, 0, 0, 0}));
}

TEST_F(BuildConditions, EachLaunchBeginsWithTheInitialValue) {
  condition const set = build(built_).make_condition(2);
  condition const never = build(built_).make_condition(0);
  // The body sets its own condition, which is then the next launch's no more.
  add_to(look(build(built_).add(if_node(set)).body(), set, 0), 1, 1);
  add_to(build(built_).add(if_node(never)).body(), 2, 1);
  graph_exec exec(built_);
  run(exec);
  run(exec);
  EXPECT_EQ(cells_.load(1), 2);
  EXPECT_EQ(cells_.load(2), 0);
}

TEST_F(BuildConditions, BodiesHoldKernelsMemsetsMemcpiesChildrenAndEmptyNodes) {
  graph child;
  add_to(child, 2, 1);
  condition const always = build(built_).make_condition(1);
  body_graph const body = build(built_).add(if_node(always)).body();
  auto const filled =
      body.add(memset_node(device_.data(), {.value = 7, .element_bytes = 4, .width = 8}));
  auto const copied =
      filled.join().add(memcpy_node(cells_.data() + 1, device_.data(), sizeof(int)));
  node const last = add_to(copied.add(child_node(child)), 1, 1);
  EXPECT_EQ(nodes_in(body).size(), 5U);
  EXPECT_EQ(edges_in(body).size(), 4U);
  EXPECT_EQ(type_of(predecessors_of(last).at(0)), cudaGraphNodeTypeGraph);
  child = graph();
  graph_exec exec(built_);
  EXPECT_TRUE(exec.is_bare());
  run(exec);
  run(exec);
  EXPECT_EQ(cells_.load(1), 8);
  EXPECT_EQ(cells_.load(2), 2);
}

TEST_F(BuildConditions, BodiesHoldConditionalNodesThatHoldOthers) {
  condition const outer = build(built_).make_condition(1);
  body_graph const loop = build(built_).add(while_node(outer)).body();
  condition const is_low = loop.make_condition(0);
  // Rounds 1 to 6: the first two of them in the switch, then four in the else.
  auto const counted =
      add_to(loop, 0, 1).add(kernel_node(set_condition_below, {}, is_low.get(), cells_.data(), 3));
  conditional_node const choice = counted.add(if_else_node(is_low));
  condition const round = choice.body().make_condition(0);
  conditional_node const cases = look(choice.body(), round, 0).add(switch_node(round, 3));
  for (std::size_t i = 0; i < 3; ++i) add_to(cases.bodies()[i], 1 + i, 1);
  condition const always = choice.otherwise().make_condition(1);
  add_to(choice.otherwise().add(if_node(always)).body(), 4, 1);
  choice.add(kernel_node(set_condition_below, {}, outer.get(), cells_.data(), 6));
  graph_exec exec(built_);
  EXPECT_TRUE(exec.is_bare());
  for (int i = 1; i <= 3; ++i) {
    cells_.store(0, 0);
    run(exec);
    EXPECT_EQ(all(), (std::vector<int>{6, 0, i, i, 4 * i, 0, 0, 0}));
  }
}

TEST_F(BuildConditions, ABodyKeepsItsGraphAliveWithAllItsNodes) {
  std::optional<body_graph> body;
  node made;
  {
    graph source;
    condition const always = build(source).make_condition(1);
    made = build(source).add(if_node(always));
    EXPECT_EQ(nodes_in(source).at(0), made);
  }
  EXPECT_THROW(static_cast<void>(made.join()), usage_error);
  {
    graph source;
    condition const always = build(source).make_condition(1);
    conditional_node const with_body = build(source).add(if_node(always));
    made = with_body;
    body = with_body.body();
  }
  EXPECT_EQ(type_of(made), cudaGraphNodeTypeConditional);
  node const inner = add_to(*body, 0, 1);
  EXPECT_NE(body->get(), nullptr);
  EXPECT_EQ(nodes_in(*body).at(0), inner);
  EXPECT_EQ(predecessors_of(add_to(made, 1, 1)).at(0), made);
  body.reset();
  EXPECT_THROW(static_cast<void>(made.join()), usage_error);
  EXPECT_THROW(static_cast<void>(inner.join()), usage_error);
}

TEST_F(BuildConditions, ABodyOfAGraphThatWasMovedOrDetachedFollowsIt) {
  condition const always = build(built_).make_condition(1);
  body_graph const body = build(built_).add(if_node(always)).body();
  graph moved_to = std::move(built_);
  add_to(body, 0, 3);
  run(moved_to);
  EXPECT_EQ(cells_.load(), 3);
  owned_graph const detached(moved_to.detach());
  EXPECT_THROW(static_cast<void>(body.get()), usage_error);
  EXPECT_THROW(add_to(body, 0, 3), usage_error);
}

TEST_F(BuildConditions, ABodysHandleCanBeCapturedInto) {
  condition const always = build(built_).make_condition(1);
  body_graph const body = build(built_).add(if_node(always)).body();
  cudaGraphNode_t const first = add_to(body, 0, 1).get();
  must(cudaStreamBeginCaptureToGraph(stream_, body.get(), &first, nullptr, 1,
                                     cudaStreamCaptureModeRelaxed));
  must(launch_add(stream_, cells_.data(), 2));
  cudaGraph_t ended = nullptr;
  must(cudaStreamEndCapture(stream_, &ended));
  EXPECT_EQ(nodes_in(body).size(), 2U);
  EXPECT_EQ(edges_in(body).size(), 1U);
  run(built_);
  EXPECT_EQ(cells_.load(), 3);
}

TEST_F(BuildConditions, KeepAGraphFromBeingCopiedWhichHarmsItNot) {
  condition const always = build(built_).make_condition(1);
  add_to(build(built_).add(if_node(always)).body(), 0, 1);
  EXPECT_THROW(static_cast<void>(built_.clone()), cuda_error);
  graph around;
  EXPECT_THROW(static_cast<void>(build(around).add(child_node(built_))), cuda_error);
  EXPECT_TRUE(nodes_in(around).empty());
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  run(built_);
  EXPECT_EQ(cells_.load(), 1);
}

}  // namespace
}  // namespace escrow::test
