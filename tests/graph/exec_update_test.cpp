// What an update of an exec swaps, when the old is released, and what the exec is ordered with; and
// graphs whose handle was another graph's before.
#include <array>
#include <optional>
#include <string>

#include "world.hpp"

namespace escrow::test {
namespace {

class ExecUpdate : public world {};

TEST_F(ExecUpdate, InFlightReleasesTheOldAfterTheLaunchAlsoIfTheNewIsLaunchedAtOnce) {
  cargo old = make_cargo();
  cargo fresh = make_cargo();
  std::optional<graph_exec> exec(captured_behind_flag(old));
  graph const longer = captured_behind_flag(fresh);
  exec->launch(two);
  exec->update(longer);
  exec->launch(two);
  exec->launch(three);
  EXPECT_TRUE(stays_kept(old));
  EXPECT_EQ(cells.load(2), 0);
  flag.raise();
  EXPECT_TRUE(is_released(old)) << "it waits for launches that do not use it";
  EXPECT_TRUE(have_ended(3));
  EXPECT_TRUE(is_kept(fresh));
}

TEST_F(ExecUpdate, ThatDoesNotFitLeavesExecGraphsAndReferencesAsTheyWere) {
  cargo old = make_cargo();
  cargo other = make_cargo();
  std::optional<graph_exec> exec(captured(old));
  std::optional<graph> longer(captured_behind_flag(other));
  for (int i = 0; i < 3; ++i) {
    EXPECT_THROW(exec->update(*longer), cuda_error);
    EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
    EXPECT_TRUE(exec->is_bare());
    EXPECT_EQ(exec->held().slots, 1U);
    exec->launch(two);
  }
  EXPECT_TRUE(is_kept(old));
  EXPECT_TRUE(is_kept(other));
  std::optional<graph_exec> of_longer(*longer);
  longer.reset();
  flag.raise();
  expect_bare_only_holder(of_longer, other);
  expect_bare_only_holder(exec, old);
  EXPECT_EQ(cells.load(), 5);
}

TEST_F(ExecUpdate, AfterOneToAPlainCloneMakesTheExecBareAgain) {
  cargo of_copy = make_cargo();
  cargo fresh = make_cargo();
  std::optional<graph_exec> exec(captured_without_cargo());
  exec->update(test::clone(captured(of_copy).get()).get());
  exec->launch(two);
  sync(two);
  EXPECT_TRUE(stays_kept(of_copy));
  exec->update(captured(fresh));
  EXPECT_TRUE(is_released(of_copy));
  expect_bare_only_holder(exec, fresh);
}

TEST_F(ExecUpdate, ToAGraphWhoseCaptureIsNotCompleteFailsAndHarmsNothing) {
  cargo old = make_cargo();
  cargo fresh = make_cargo();
  std::optional<graph_exec> exec(captured(old));
  test::capture open{one, cudaStreamCaptureModeGlobal};
  load(fresh, one);
  EXPECT_THROW(exec->update(open.info().graph), cuda_error);
  must(launch_add(one, cells.data(), 1));
  ASSERT_EQ(open.end(), cudaSuccess);
  exec->update(open.graph().get());
  open.graph().reset();
  EXPECT_TRUE(is_released(old));
  expect_bare_only_holder(exec, fresh);
}

TEST_F(ExecUpdate, InFlightLeavesTheLaunchOrderedWithOtherExecsOfItsGraph) {
  cargo taken = make_cargo();
  cargo other = make_cargo();
  graph const source = captured_behind_flag(taken);
  graph const next = captured_behind_flag(other);
  graph_exec first(source);
  graph_exec second(source);
  first.launch(two);
  first.update(next);
  expect_ordered([&] { second.launch(three); });
}

TEST_F(ExecUpdate, EndsTheOrderWithThoseOfTheOldGraph) {
  cargo taken = make_cargo();
  cargo other = make_cargo();
  graph const source = captured(taken);
  graph_exec first(source);
  graph_exec second(source);
  first.launch(two);
  first.update(captured(other));
  hold_up(two);
  first.launch(two);  // behind the flag
  second.launch(three);
  EXPECT_TRUE(wait_until([&] { return cells.load() == 2; }))
      << "it waits for a launch that shares nothing with it";
}

// CUDA gives handles of destroyed graphs again, while execs of those graphs are still there.
class HandleGivenAgain : public world, public testing::WithParamInterface<bool> {};

INSTANTIATE_TEST_SUITE_P(NewGraph, HandleGivenAgain, testing::Bool(), [](auto const& each) {
  return std::string(each.param ? "HoldsSomething" : "HoldsNothing");
});

TEST_P(HandleGivenAgain, HoldsOnlyWhatTheNewGraphHolds) {
  bool const holds = GetParam();
  cargo of_old = make_cargo();
  cargo of_new = make_cargo();
  std::optional<owned_graph> old_graph(captured_plainly(of_old));
  cudaGraph_t const old_handle = old_graph->get();
  std::optional<graph_exec> of_old_graph(old_handle);
  old_graph.reset();
  bool is_same = false;
  for (int i = 0; i < 200 && !is_same; ++i) {
    of_new.fate = make_fate();
    owned_graph fresh = holds ? captured_plainly(of_new) : chain({add_call(cells.data(), 1)});
    is_same = fresh.get() == old_handle;
    graph_exec exec(fresh.get());
    EXPECT_EQ(exec.held().slots, holds ? 1U : 0U);
    EXPECT_EQ(exec.held().owners, holds ? 1U : 0U);
    fresh.reset();
    exec.launch(two);
    EXPECT_TRUE(is_out(of_new.fate));
    exec = graph_exec(graph());
    if (holds) {
      EXPECT_TRUE(is_released(of_new)) << "it stays with the exec of the old graph";
    }
    EXPECT_TRUE(is_out(of_old.fate));
  }
  expect_bare_only_holder(of_old_graph, of_old);
  if (!is_same) GTEST_SKIP() << "no handle was given again";
}

}  // namespace
}  // namespace escrow::test
