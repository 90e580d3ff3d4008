// The value of a condition: set by kernels, back to its default as each execution begins.
#include <gtest/gtest.h>

#include "build_graph.hpp"
#include "conditional_nodes.hpp"
#include "handles.hpp"
#include "memory.hpp"
#include "wait_until.hpp"

namespace escrow::test {
namespace {

class ConditionValue : public testing::Test {
 protected:
  // A kernel that sets `condition` to value(), and behind it a node of `type`; body i adds 1 to
  // cell i.
  void set_and_choose(cudaGraphConditionalNodeType type, unsigned bodies) {
    auto const condition = make_condition(graph, 0);
    auto* const setter = add_kernel(graph, set_condition_call(condition, value.data()));
    auto const node = add_conditional_node(graph, condition, type, bodies, setter);
    for (unsigned i = 0; i < bodies; ++i) add_kernel(node.bodies[i], add_call(cell(i), 1));
    exec = instantiate(graph);
  }
  void launch_with(int new_value) {
    value.store(0, new_value);
    must(cudaGraphLaunch(exec, stream));
    must(cudaStreamSynchronize(stream));
  }
  int* cell(unsigned i = 0) { return cells.data() + i; }

  pinned_ints cells{4};
  pinned_ints value;
  owned_stream stream = make_stream();
  owned_graph graph = make_graph();
  owned_exec exec;
};

TEST_F(ConditionValue, SetByAKernelDecidesWhetherABodyRuns) {
  set_and_choose(cudaGraphCondTypeIf, 1);
  launch_with(1);
  EXPECT_EQ(cells.load(0), 1);
  launch_with(0);
  EXPECT_EQ(cells.load(0), 1);
}

TEST_F(ConditionValue, SetByAKernelDecidesBetweenTwoBodies) {
  set_and_choose(cudaGraphCondTypeIf, 2);
  launch_with(7);
  launch_with(0);
  launch_with(0);
  EXPECT_EQ(cells.load(0), 1);
  EXPECT_EQ(cells.load(1), 2);
}

TEST_F(ConditionValue, SetByAKernelDecidesWhichBodyOfASwitchRuns) {
  set_and_choose(cudaGraphCondTypeSwitch, 3);
  launch_with(1);
  launch_with(2);
  launch_with(2);
  launch_with(3);
  EXPECT_EQ(cells.load(0), 0);
  EXPECT_EQ(cells.load(1), 1);
  EXPECT_EQ(cells.load(2), 2);
}

TEST_F(ConditionValue, SetInTheBodyOfAWhileNodeEndsIt) {
  auto const condition = make_condition(graph, 1);
  auto* const body = add_conditional_node(graph, condition, cudaGraphCondTypeWhile).bodies[0];
  auto* const step = add_kernel(body, add_call(cell(), 1));
  add_kernel(body, set_condition_below_call(condition, cell(), 5), step);
  exec = instantiate(graph);
  launch_with(0);
  EXPECT_EQ(cells.load(), 5);
  // The default lets it run once more.
  launch_with(0);
  EXPECT_EQ(cells.load(), 6);
}

TEST_F(ConditionValue, IsItsDefaultAgainAtTheNextLaunch) {
  auto const condition = make_condition(graph, 1);
  auto* const body = add_conditional_node(graph, condition, cudaGraphCondTypeIf).bodies[0];
  auto* const step = add_kernel(body, add_call(cell(), 1));
  add_kernel(body, set_condition_call(condition, value.data()), step);
  exec = instantiate(graph);
  launch_with(0);
  launch_with(0);
  EXPECT_EQ(cells.load(), 2);
}

TEST_F(ConditionValue, OfARunningLaunchIsLeftAloneByTheCallThatLaunchesAgain) {
  pinned_flag flag;
  auto const condition = make_condition(graph, 1);
  auto* const setter = add_kernel(graph, set_condition_call(condition, value.data()));
  auto* const wait = add_kernel(graph, wait_flag_call(flag.get()), setter);
  auto const node = add_conditional_node(graph, condition, cudaGraphCondTypeIf, 1, wait);
  add_kernel(node.bodies[0], add_call(cell(), 1));
  add_kernel(graph, add_call(cell(1), 1), setter);
  exec = instantiate(graph);
  must(cudaGraphLaunch(exec, stream));
  ASSERT_TRUE(wait_until([&] { return cells.load(1) == 1; }));
  must(cudaGraphLaunch(exec, stream));
  flag.raise();
  must(cudaStreamSynchronize(stream));
  EXPECT_EQ(cells.load(0), 0);
  EXPECT_EQ(cells.load(1), 2);
}

TEST_F(ConditionValue, OfAnInnerNodeIsNotItsDefaultAgainInTheNextTurnOfALoop) {
  auto const outer = make_condition(graph, 1);
  auto const inner = make_condition(graph, 1);
  auto* const body = add_conditional_node(graph, outer, cudaGraphCondTypeWhile).bodies[0];
  auto const node = add_conditional_node(body, inner, cudaGraphCondTypeIf);
  auto* const once = add_kernel(node.bodies[0], add_call(cell(1), 1));
  add_kernel(node.bodies[0], set_condition_call(inner, value.data()), once);
  auto* const turn = add_kernel(body, add_call(cell(0), 1), node.node);
  add_kernel(body, set_condition_below_call(outer, cell(0), 3), turn);
  exec = instantiate(graph);
  launch_with(0);
  EXPECT_EQ(cells.load(0), 3);
  EXPECT_EQ(cells.load(1), 1);
}

}  // namespace
}  // namespace escrow::test
