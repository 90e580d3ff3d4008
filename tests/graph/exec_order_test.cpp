// Execs that share something take turns, those that share nothing do not wait for each other; and
// with plain launches there are no turns at all.
#include <optional>

#include "escrow/core/error.hpp"
#include "exec_order_fixture.hpp"
#include "sanitizers.hpp"

namespace escrow::test {
namespace {

// Whether ThreadSanitizer sees what kernels do.
constexpr bool reports_races = built_with_tsan;

class ExecOrder : public exec_order_test {};

TEST_F(ExecOrder, PlainLaunchesOfTwoExecsOfOneGraphOverlapWhichIsAHazard) {
  if (reports_races) GTEST_SKIP() << "the race that this shows is reported, as it should be";
  cargo taken = make_cargo();
  graph const source = captured_in_turns(taken);
  owned_exec const first = instantiate(source.get());
  owned_exec const second = instantiate(source.get());
  must(cudaGraphLaunch(first, two));
  must(cudaGraphLaunch(second, three));
  EXPECT_TRUE(have_started(2)) << "both use the one slot at the same time";
  EXPECT_EQ(cells.load(2), 0);
  flag.raise();
  sync_all();
}

TEST_F(ExecOrder, TwoExecsOfOneGraphTakeTurns) {
  cargo taken = make_cargo();
  graph const source = captured_in_turns(taken);
  graph_exec first(source);
  graph_exec second(source);
  expect_turns(first, second);
}

TEST_F(ExecOrder, TwoExecsOfOneForeignCaptureTakeTurns) {
  cargo taken = make_cargo();
  owned_graph const source(captured_in_turns(taken).detach());
  graph_exec first(source.get());
  graph_exec second(source.get());
  expect_turns(first, second);
}

TEST_F(ExecOrder, TheTurnsHoldTheOtherWayRoundToo) {
  cargo taken = make_cargo();
  graph const source = captured_in_turns(taken);
  graph_exec first(source);
  graph_exec second(source);
  expect_turns(second, first);
}

TEST_F(ExecOrder, ACloneTakesTurnsWithItsOriginal) {
  cargo taken = make_cargo();
  graph const source = captured_in_turns(taken);
  graph const copy = source.clone();
  graph_exec first(source);
  graph_exec second(copy);
  expect_turns(first, second);
}

TEST_F(ExecOrder, ACloneThatOutlivesItsOriginalTakesTurnsWithTheOriginalsExec) {
  cargo taken = make_cargo();
  graph source = captured_in_turns(taken);
  graph_exec first(source);
  std::optional<graph_exec> second;
  {
    graph const copy = source.clone();
    source = graph();
    second.emplace(copy);
  }
  expect_turns(*second, first);
}

TEST_F(ExecOrder, AParentTakesTurnsWithItsChild) {
  cargo taken = make_cargo();
  graph const child = captured_in_turns(taken);
  graph parent;
  parent.add_child(child);
  graph_exec first(child);
  graph_exec second(parent);
  expect_turns(first, second);
}

TEST_F(ExecOrder, AChildTakesTurnsWithItsParent) {
  cargo taken = make_cargo();
  graph const child = captured_in_turns(taken);
  graph parent;
  parent.add_child(child);
  graph_exec first(parent);
  graph_exec second(child);
  expect_turns(first, second);
}

TEST_F(ExecOrder, TwoParentsOfOneChildTakeTurns) {
  cargo taken = make_cargo();
  graph const child = captured_in_turns(taken);
  graph one_parent;
  graph other_parent;
  one_parent.add_child(child);
  other_parent.add_child(child);
  graph_exec first(one_parent);
  graph_exec second(other_parent);
  expect_turns(first, second);
}

TEST_F(ExecOrder, AGraphThatTookUpMoreTakesTurnsWithTheExecOfItsFirstPiece) {
  cargo early = make_cargo();
  cargo late = make_cargo();
  graph const source = captured_in_turns(early);
  graph_exec first(source);
  capture_into(source.get(), [&](cudaStream_t stream) { load(late, stream); });
  graph_exec second(source);
  expect_turns(first, second);
}

TEST_F(ExecOrder, ExecsThatShareNothingDoNotWaitForEachOther) {
  cargo taken = make_cargo();
  cargo other = make_cargo();
  graph_exec blocked(captured_in_turns(taken));
  graph_exec free(captured_freely(other));
  blocked.launch(two);
  ASSERT_TRUE(have_started(1));
  free.launch(three);
  free.launch(one);
  EXPECT_TRUE(have_ended(2)) << "held up by a launch that shares nothing with it";
}

TEST_F(ExecOrder, ExecsOfOneGraphThatHoldsNothingDoNotWaitForEachOther) {
  cargo unrelated = make_cargo();
  graph const holds = captured(unrelated);
  graph const source = escrow::capture(one, [&](stream_ref stream) {
    must(launch_add(stream.get(), started(), 1));
    must(launch_wait_flag(stream.get(), flag.get()));
  });
  graph_exec first(source);
  graph_exec second(source);
  first.launch(two);
  second.launch(three);
  EXPECT_TRUE(have_started(2));
}

TEST_F(ExecOrder, LaunchingIntoACaptureWhileAnotherIsInFlightIsRefusedAndHarmsItNot) {
  cargo taken = make_cargo();
  graph const source = captured_in_turns(taken);
  graph_exec first(source);
  graph_exec second(source);
  first.launch(two);
  {
    test::capture open{three, cudaStreamCaptureModeThreadLocal};
    EXPECT_THROW(second.launch(three), usage_error);
    EXPECT_EQ(open.end(), cudaSuccess);
  }
  second.launch(three);
  expect_that_the_second_waits();
}

TEST_F(ExecOrder, StreamsOfTwoDevicesTakeTurnsToo) {
  int devices = 0;
  must(cudaGetDeviceCount(&devices));
  if (devices < 2) GTEST_SKIP() << "one device";
  cargo taken = make_cargo();
  graph const source = captured_in_turns(taken);
  graph_exec first(source);
  graph_exec second(source);
  owned_stream far_stream;
  {
    device_scope const there(1);
    far_stream = make_stream();
  }
  first.launch(far_stream);
  ASSERT_TRUE(have_started(1));
  second.launch(three);
  expect_that_the_second_waits();
  sync(far_stream);
}

}  // namespace
}  // namespace escrow::test
