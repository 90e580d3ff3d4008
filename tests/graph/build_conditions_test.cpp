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
  condition const chosen = built_.make_condition(0);
  conditional_node const made = look(built_, chosen, 0).if_then(chosen);
  EXPECT_EQ(made.type(), cudaGraphNodeTypeConditional);
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
  condition const chosen = built_.make_condition(1);
  conditional_node const made = look(built_, chosen, 0).if_else(chosen);
  EXPECT_EQ(made.type(), cudaGraphNodeTypeConditional);
  ASSERT_EQ(made.bodies().size(), 2U);
  add_to(made.body(), 1, 1);
  add_to(made.otherwise(), 2, 1);
  graph_exec exec(built_);
  for (int const value : {0, 1, 7, 0, 0}) run_with(exec, value);
  EXPECT_EQ(cells_.load(1), 2);
  EXPECT_EQ(cells_.load(2), 3);
}

TEST_F(BuildConditions, AWhileRunsItsBodyAsLongAsTheConditionIsSet) {
  condition const chosen = built_.make_condition(0);
  conditional_node const made = look(built_, chosen, 0).while_loop(chosen);
  EXPECT_EQ(made.type(), cudaGraphNodeTypeConditional);
  EXPECT_EQ(made.bodies().size(), 1U);
  add_to(made.body(), 1, 1).launch(set_condition_below, {}, chosen.get(), cells_.data() + 1, 10);
  graph_exec exec(built_);
  run_with(exec, 0);
  EXPECT_EQ(cells_.load(1), 0);
  run_with(exec, 1);
  EXPECT_EQ(cells_.load(1), 10);
  run_with(exec, 1);
  EXPECT_EQ(cells_.load(1), 11);
}

TEST_F(BuildConditions, ASwitchRunsTheBodyOfThatNumberOrNone) {
  condition const chosen = built_.make_condition(0);
  conditional_node const made = look(built_, chosen, 0).switch_to(chosen, 3);
  EXPECT_EQ(made.type(), cudaGraphNodeTypeConditional);
  ASSERT_EQ(made.bodies().size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) add_to(made.bodies()[i], i + 1, 1);
  graph_exec exec(built_);
  EXPECT_TRUE(exec.is_bare());
  for (int const value : {2, 0, 3, 2, -1, 2}) run_with(exec, value);
  EXPECT_EQ(all(), (std::vector<int>{2, 1, 0, 3, 0, 0, 0, 0}));
}

TEST_F(BuildConditions, EachLaunchBeginsWithTheInitialValue) {
  condition const set = built_.make_condition(2);
  condition const never = built_.make_condition(0);
  // The body sets its own condition, which is then the next launch's no more.
  add_to(look(built_.if_then(set).body(), set, 0), 1, 1);
  add_to(built_.if_then(never).body(), 2, 1);
  graph_exec exec(built_);
  run(exec);
  run(exec);
  EXPECT_EQ(cells_.load(1), 2);
  EXPECT_EQ(cells_.load(2), 0);
}

TEST_F(BuildConditions, BodiesHoldKernelsMemsetsMemcpiesChildrenAndEmptyNodes) {
  graph child;
  add_to(child, 2, 1);
  condition const always = built_.make_condition(1);
  body_graph const body = built_.if_then(always).body();
  auto const filled = body.memset(device_.data(), {.value = 7, .element_bytes = 4, .width = 8});
  auto const copied = filled.join().memcpy(cells_.data() + 1, device_.data(), sizeof(int));
  node const last = add_to(copied.embed(child), 1, 1);
  EXPECT_EQ(body.nodes().size(), 5U);
  EXPECT_EQ(body.edges().size(), 4U);
  EXPECT_EQ(last.predecessors().at(0).type(), cudaGraphNodeTypeGraph);
  child = graph();
  graph_exec exec(built_);
  EXPECT_TRUE(exec.is_bare());
  run(exec);
  run(exec);
  EXPECT_EQ(cells_.load(1), 8);
  EXPECT_EQ(cells_.load(2), 2);
}

TEST_F(BuildConditions, BodiesHoldConditionalNodesThatHoldOthers) {
  condition const outer = built_.make_condition(1);
  body_graph const loop = built_.while_loop(outer).body();
  condition const is_low = loop.make_condition(0);
  // Rounds 1 to 6: the first two of them in the switch, then four in the else.
  auto const counted =
      add_to(loop, 0, 1).launch(set_condition_below, {}, is_low.get(), cells_.data(), 3);
  conditional_node const choice = counted.if_else(is_low);
  condition const round = choice.body().make_condition(0);
  conditional_node const cases = look(choice.body(), round, 0).switch_to(round, 3);
  for (std::size_t i = 0; i < 3; ++i) add_to(cases.bodies()[i], 1 + i, 1);
  condition const always = choice.otherwise().make_condition(1);
  add_to(choice.otherwise().if_then(always).body(), 4, 1);
  choice.launch(set_condition_below, {}, outer.get(), cells_.data(), 6);
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
    condition const always = source.make_condition(1);
    made = source.if_then(always);
    EXPECT_EQ(source.nodes().at(0), made);
  }
  EXPECT_THROW(static_cast<void>(made.type()), usage_error);
  {
    graph source;
    condition const always = source.make_condition(1);
    conditional_node const with_body = source.if_then(always);
    made = with_body;
    body = with_body.body();
  }
  EXPECT_EQ(made.type(), cudaGraphNodeTypeConditional);
  node const inner = add_to(*body, 0, 1);
  EXPECT_NE(body->get(), nullptr);
  EXPECT_EQ(body->nodes().at(0), inner);
  EXPECT_EQ(add_to(made, 1, 1).predecessors().at(0), made);
  body.reset();
  EXPECT_THROW(static_cast<void>(made.type()), usage_error);
  EXPECT_THROW(static_cast<void>(inner.type()), usage_error);
}

TEST_F(BuildConditions, ABodyOfAGraphThatWasMovedOrDetachedFollowsIt) {
  condition const always = built_.make_condition(1);
  body_graph const body = built_.if_then(always).body();
  graph moved_to = std::move(built_);
  add_to(body, 0, 3);
  run(moved_to);
  EXPECT_EQ(cells_.load(), 3);
  owned_graph const detached(moved_to.detach());
  EXPECT_THROW(static_cast<void>(body.get()), usage_error);
  EXPECT_THROW(add_to(body, 0, 3), usage_error);
}

TEST_F(BuildConditions, ABodysHandleCanBeCapturedInto) {
  condition const always = built_.make_condition(1);
  body_graph const body = built_.if_then(always).body();
  cudaGraphNode_t const first = add_to(body, 0, 1).get();
  must(cudaStreamBeginCaptureToGraph(stream_, body.get(), &first, nullptr, 1,
                                     cudaStreamCaptureModeRelaxed));
  must(launch_add(stream_, cells_.data(), 2));
  cudaGraph_t ended = nullptr;
  must(cudaStreamEndCapture(stream_, &ended));
  EXPECT_EQ(body.nodes().size(), 2U);
  EXPECT_EQ(body.edges().size(), 1U);
  run(built_);
  EXPECT_EQ(cells_.load(), 3);
}

TEST_F(BuildConditions, KeepAGraphFromBeingCopiedWhichHarmsItNot) {
  condition const always = built_.make_condition(1);
  add_to(built_.if_then(always).body(), 0, 1);
  EXPECT_THROW(static_cast<void>(built_.clone()), cuda_error);
  graph around;
  EXPECT_THROW(static_cast<void>(around.embed(built_)), cuda_error);
  EXPECT_TRUE(around.nodes().empty());
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  run(built_);
  EXPECT_EQ(cells_.load(), 1);
}

}  // namespace
}  // namespace escrow::test
