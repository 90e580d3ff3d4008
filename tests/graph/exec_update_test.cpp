// Updating an exec swaps what it holds; the old is let go after the last launch that used it.
#include <array>
#include <optional>

#include "hoist_fixture.hpp"

namespace escrow::test {
namespace {

class ExecUpdate : public hoist_test {
 protected:
  // What nobody but the exec holds any more, once the graph is gone.
  void update(graph_exec& exec, cargo& taken) { exec.update(captured(taken)); }
};

TEST_F(ExecUpdate, AChainOfAThousandKeepsJustTheNewestAndLosesNothing) {
  constexpr int rounds = 1000;
  std::array<cargo, 2> taken{make_cargo(), make_cargo()};
  std::optional<graph_exec> exec(captured(taken[0]));
  exec->launch(two);
  for (int i = 1; i <= rounds; ++i) {
    cargo& fresh = taken[static_cast<std::size_t>(i % 2)];
    cargo& old = taken[static_cast<std::size_t>((i + 1) % 2)];
    fresh.fate = make_fate();
    update(*exec, fresh);
    exec->launch(two);  // at once, with the launch of the old perhaps in flight
    ASSERT_TRUE(comes_back(old)) << "round " << i;
    ASSERT_FALSE(fresh.owner_is_gone()) << "round " << i;
    ASSERT_FALSE(fresh.slot_is_back(asking)) << "round " << i;
  }
  EXPECT_TRUE(exec->is_bare());
  expect_bare_sole_holder(exec, taken[rounds % 2]);
  EXPECT_EQ(cells.load(), rounds + 3);
  EXPECT_EQ(made(), 2);
}

TEST_F(ExecUpdate, AThousandBetweenTwoGraphsThatLiveOnLosesNothing) {
  std::array<cargo, 2> taken{make_cargo(), make_cargo()};
  {
    std::array<graph, 2> const sources{captured(taken[0]), captured(taken[1])};
    graph_exec exec(sources[0]);
    for (std::size_t i = 1; i <= 1000; ++i) {
      exec.update(sources[i % 2]);
      exec.launch(two);
    }
    sync(two);
    for (cargo& each : taken) EXPECT_TRUE(stays_kept(each));
  }
  for (cargo& each : taken) EXPECT_TRUE(comes_back(each));
  EXPECT_EQ(cells.load(), 1000);
}

TEST_F(ExecUpdate, LetsTheOldGoAtOnceIfItWasNeverLaunched) {
  cargo old = make_cargo();
  cargo fresh = make_cargo();
  std::optional<graph_exec> exec(captured(old));
  update(*exec, fresh);
  EXPECT_TRUE(comes_back(old));
  expect_bare_sole_holder(exec, fresh);
}

TEST_F(ExecUpdate, InFlightLetsTheOldGoAfterTheLaunchAlsoIfTheNewIsLaunchedAtOnce) {
  cargo old = make_cargo();
  cargo fresh = make_cargo();
  std::optional<graph_exec> exec(captured_behind_flag(old));
  graph const longer = captured_behind_flag(fresh);
  exec->launch(two);
  exec->update(longer);
  exec->launch(two);
  exec->launch(three);
  EXPECT_TRUE(stays_kept(old));
  EXPECT_EQ(cells.load(), 0);
  flag.raise();
  EXPECT_TRUE(comes_back(old)) << "it waits for launches that do not use it";
  sync_all();
  EXPECT_EQ(cells.load(), 3);
  EXPECT_TRUE(is_kept(fresh));
}

TEST_F(ExecUpdate, TheOldDoesNotWaitForLaunchesOfTheNew) {
  cargo old = make_cargo();
  cargo fresh = make_cargo();
  std::optional<graph_exec> exec(captured(old));
  exec->launch(two);
  sync(two);
  update(*exec, fresh);
  must(launch_wait_flag(two, flag.get()));
  exec->launch(two);  // waits behind the flag
  EXPECT_TRUE(comes_back(old));
  exec.reset();
  EXPECT_TRUE(stays_kept(fresh));
  flag.raise();
  EXPECT_TRUE(comes_back(fresh));
}

TEST_F(ExecUpdate, ManyTimesWithOneLaunchInFlightKeepsWhatThatUsesAlone) {
  std::array<cargo, 4> taken{make_cargo(), make_cargo(), make_cargo(), make_cargo()};
  std::optional<graph_exec> exec(captured_behind_flag(taken[0]));
  std::array<graph, 3> sources{captured_behind_flag(taken[1]), captured_behind_flag(taken[2]),
                               captured_behind_flag(taken[3])};
  exec->launch(two);
  for (graph& each : sources) {
    exec->update(each);
    each = graph();
  }
  EXPECT_TRUE(comes_back(taken[1])) << "it was never launched";
  EXPECT_TRUE(comes_back(taken[2]));
  EXPECT_TRUE(stays_kept(taken[0]));
  exec.reset();
  EXPECT_TRUE(comes_back(taken[3]));
  EXPECT_TRUE(is_kept(taken[0]));
  flag.raise();
  EXPECT_TRUE(comes_back(taken[0]));
}

TEST_F(ExecUpdate, ThatDoesNotFitLeavesExecGraphsAndReferencesAsTheyWere) {
  cargo old = make_cargo();
  cargo other = make_cargo();
  std::optional<graph> source(captured(old));
  std::optional<graph_exec> exec(*source);
  source.reset();
  std::optional<graph> longer(captured_behind_flag(other));
  for (int i = 0; i < 3; ++i) {
    EXPECT_THROW(exec->update(*longer), cuda_error);
    EXPECT_TRUE(exec->is_bare());
    EXPECT_EQ(exec->held().slots, 1U);
    exec->launch(two);
  }
  EXPECT_TRUE(is_kept(old));
  EXPECT_TRUE(is_kept(other));
  std::optional<graph_exec> of_longer(*longer);
  longer.reset();
  flag.raise();
  expect_bare_sole_holder(of_longer, other);
  EXPECT_TRUE(is_kept(old));
  expect_bare_sole_holder(exec, old);
  EXPECT_EQ(cells.load(), 7);
}

TEST_F(ExecUpdate, ToItsOwnGraphChangesNothing) {
  cargo taken = make_cargo();
  std::optional<graph> source(captured(taken));
  std::optional<graph_exec> exec(*source);
  for (int i = 0; i < 10; ++i) {
    exec->update(*source);
    exec->launch(two);
  }
  EXPECT_TRUE(stays_kept(taken));
  source.reset();
  expect_bare_sole_holder(exec, taken);
  EXPECT_EQ(cells.load(), 12);
}

TEST_F(ExecUpdate, ToItsOwnGraphInFlightGivesBackAfterTheLaunch) {
  cargo taken = make_cargo();
  {
    graph const source = captured_behind_flag(taken);
    graph_exec exec(source);
    exec.launch(two);
    exec.update(source);
  }
  EXPECT_TRUE(stays_kept(taken));
  flag.raise();
  EXPECT_TRUE(comes_back(taken));
}

TEST_F(ExecUpdate, ToAGraphThatHoldsNothingAndBack) {
  cargo taken = make_cargo();
  std::optional<graph_exec> exec(captured(taken));
  for (int i = 0; i < 5; ++i) {
    exec->launch(two);
    exec->update(captured_empty_handed());
    EXPECT_TRUE(comes_back(taken));
    EXPECT_EQ(exec->held().slots, 0U);
    exec->launch(two);
    taken.fate = make_fate();
    update(*exec, taken);
  }
  expect_bare_sole_holder(exec, taken);
  EXPECT_EQ(cells.load(), 12);
}

TEST_F(ExecUpdate, FromAPlainCloneIsRightAndBareAgainAfterTheNext) {
  cargo of_copy = make_cargo();
  cargo fresh = make_cargo();
  std::optional<graph_exec> exec(captured_empty_handed());
  {
    graph const original = captured(of_copy);
    owned_graph const copy = test::clone(original.get());
    exec->update(copy.get());
  }
  exec->launch(two);
  sync(two);
  EXPECT_TRUE(stays_kept(of_copy));
  update(*exec, fresh);
  EXPECT_TRUE(comes_back(of_copy));
  expect_bare_sole_holder(exec, fresh);
}

TEST_F(ExecUpdate, OfAParentSwapsWhatItsChildrenHold) {
  cargo old = make_cargo();
  cargo fresh = make_cargo();
  auto const around = [](graph const& inner) {
    graph outer;
    outer.add_child(inner);
    return outer;
  };
  std::optional<graph_exec> exec(around(captured(old)));
  exec->launch(two);
  exec->update(around(captured(fresh)));
  EXPECT_TRUE(comes_back(old));
  expect_bare_sole_holder(exec, fresh);
  EXPECT_EQ(cells.load(), 3);
}

TEST_F(ExecUpdate, WithAGraphWhoseCaptureIsNotCompleteFailsAndHarmsNothing) {
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
  EXPECT_TRUE(comes_back(old));
  expect_bare_sole_holder(exec, fresh);
}

}  // namespace
}  // namespace escrow::test
