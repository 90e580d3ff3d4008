// Turns of execs that end, are made or are updated while a launch is in flight.
#include "exec_order_fixture.hpp"

namespace escrow::test {
namespace {

class ExecOrderChanges : public exec_order_test {};

TEST_F(ExecOrderChanges, AnExecThatIsGoneStillHasItsTurnWhileItsLaunchIsInFlight) {
  cargo taken = make_cargo();
  graph const source = captured_in_turns(taken);
  graph_exec second(source);
  {
    graph_exec first(source);
    first.launch(two);
    ASSERT_TRUE(have_started(1));
  }
  second.launch(three);
  expect_that_the_second_waits();
}

TEST_F(ExecOrderChanges, AnExecMadeWhileALaunchIsInFlightWaitsForIt) {
  cargo taken = make_cargo();
  graph const source = captured_in_turns(taken);
  {
    graph_exec first(source);
    first.launch(two);
    ASSERT_TRUE(have_started(1));
  }
  graph_exec second(source);
  second.launch(three);
  expect_that_the_second_waits();
}

TEST_F(ExecOrderChanges, AnExecWhoseStreamIsGoneStillHasItsTurn) {
  cargo taken = make_cargo();
  graph const source = captured_in_turns(taken);
  graph_exec first(source);
  graph_exec second(source);
  {
    owned_stream const passing = make_stream();
    first.launch(passing);
  }
  ASSERT_TRUE(have_started(1));
  second.launch(three);
  expect_that_the_second_waits();
}

TEST_F(ExecOrderChanges, AnUpdatedExecStillHasTheTurnOfItsLaunchInFlight) {
  cargo taken = make_cargo();
  cargo other = make_cargo();
  graph const source = captured_in_turns(taken);
  graph const next = captured_in_turns(other);
  graph_exec first(source);
  graph_exec second(source);
  first.launch(two);
  ASSERT_TRUE(have_started(1));
  first.update(next);
  second.launch(three);
  expect_that_the_second_waits();
}

TEST_F(ExecOrderChanges, AnExecUpdatedToAGraphTakesTurnsWithThatGraphsExecs) {
  cargo taken = make_cargo();
  cargo before = make_cargo();
  graph const source = captured_in_turns(taken);
  graph_exec first(source);
  graph_exec second(captured_in_turns(before));
  second.update(source);
  expect_turns(first, second);
}

TEST_F(ExecOrderChanges, AnExecUpdatedAwayFromAGraphWaitsNoMore) {
  cargo taken = make_cargo();
  cargo other = make_cargo();
  graph const source = captured_freely(taken);
  graph_exec first(source);
  graph_exec second(source);
  first.launch(two);
  first.update(captured_freely(other));
  must(launch_wait_flag(two, flag.get()));
  first.launch(two);  // behind the flag
  second.launch(three);
  EXPECT_TRUE(have_ended(2)) << "held up by a launch that shares nothing with it";
}

}  // namespace
}  // namespace escrow::test
