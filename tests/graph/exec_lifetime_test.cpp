// When what a graph_exec holds comes back: after its end and its last launch, in whatever order
// graph, exec, pool, deleter and streams go.
#include <memory>
#include <optional>
#include <thread>

#include "hoist_fixture.hpp"

namespace escrow::test {
namespace {

class ExecLifetime : public hoist_test {
 protected:
  // An exec in flight, behind the flag, whose graph is gone.
  [[nodiscard]] graph_exec in_flight(cargo& taken) {
    graph_exec exec(captured_behind_flag(taken));
    exec.launch(two);
    return exec;
  }
  // The launch that waits for the flag keeps the cargo; nothing else does.
  void expect_back_after_the_launch(cargo& taken) {
    EXPECT_TRUE(stays_kept(taken));
    EXPECT_FALSE(drains_soon()) << "what a launch in flight uses counts as reclaimed";
    EXPECT_EQ(cells.load(), 0) << "the flag does not hold the launch";
    flag.raise();
    EXPECT_TRUE(drained());
    EXPECT_TRUE(comes_back(taken));
  }
};

TEST_F(ExecLifetime, DestroyedWithoutALaunchGivesEverythingBack) {
  cargo taken = make_cargo();
  {
    std::optional<graph_exec> exec(captured(taken));
    EXPECT_TRUE(is_kept(taken));
    exec.reset();
  }
  EXPECT_TRUE(comes_back(taken));
}

TEST_F(ExecLifetime, DestroyedAfterItsLaunchesGivesEverythingBack) {
  cargo taken = make_cargo();
  {
    graph_exec exec(captured(taken));
    for (int i = 0; i < 3; ++i) exec.launch(two);
    sync(two);
    EXPECT_TRUE(is_kept(taken)) << "an exec can be launched again";
    exec.launch(three);
    sync(three);
    EXPECT_TRUE(is_kept(taken));
  }
  EXPECT_TRUE(comes_back(taken));
  EXPECT_EQ(cells.load(), 4);
}

TEST_F(ExecLifetime, DestroyedInFlightKeepsEverythingUntilTheLaunchIsDone) {
  cargo taken = make_cargo();
  { graph_exec const exec = in_flight(taken); }
  expect_back_after_the_launch(taken);
  sync_all();
  EXPECT_EQ(cells.load(), 1);
}

TEST_F(ExecLifetime, DestroyedInFlightWaitsForTheLastOfItsLaunchesOnManyStreams) {
  cargo taken = make_cargo();
  {
    graph_exec exec = in_flight(taken);
    exec.launch(three);
    exec.launch(one);
  }
  expect_back_after_the_launch(taken);
  sync_all();
  EXPECT_EQ(cells.load(), 3);
}

TEST_F(ExecLifetime, ALaunchQueuedBehindOtherWorkCountsAsInFlight) {
  cargo taken = make_cargo();
  must(launch_wait_flag(two, flag.get()));
  {
    graph_exec exec(captured(taken));
    exec.launch(two);
  }
  expect_back_after_the_launch(taken);
}

TEST_F(ExecLifetime, TheLastStreamMayBeDestroyedBeforeTheExec) {
  cargo taken = make_cargo();
  {
    graph_exec exec(captured_behind_flag(taken));
    exec.launch(two);
    {
      owned_stream const passing = make_stream();
      exec.launch(passing);
    }
    EXPECT_TRUE(is_kept(taken));
  }
  expect_back_after_the_launch(taken);
  EXPECT_TRUE(wait_until([&] { return cells.load() == 2; }));
}

TEST_F(ExecLifetime, TheLastStreamMayBeDestroyedAfterItsLaunchIsDone) {
  cargo taken = make_cargo();
  {
    graph_exec exec(captured(taken));
    {
      owned_stream const passing = make_stream();
      exec.launch(passing);
      sync(passing);
    }
    EXPECT_TRUE(is_kept(taken));
    exec.launch(two);
  }
  EXPECT_TRUE(comes_back(taken));
}

TEST_F(ExecLifetime, TheLastOfTwoExecsGivesBackWhenTheFirstGoesFirst) {
  cargo taken = make_cargo();
  std::optional<graph> source(captured(taken));
  std::optional<graph_exec> first(*source);
  std::optional<graph_exec> second(*source);
  source.reset();
  first->launch(one);
  second->launch(two);
  sync_all();
  first.reset();
  EXPECT_TRUE(stays_kept(taken));
  second.reset();
  EXPECT_TRUE(comes_back(taken));
}

TEST_F(ExecLifetime, TheLastOfTwoExecsGivesBackWhenTheSecondGoesFirst) {
  cargo taken = make_cargo();
  std::optional<graph> source(captured(taken));
  std::optional<graph_exec> first(*source);
  std::optional<graph_exec> second(*source);
  source.reset();
  second.reset();
  EXPECT_TRUE(is_kept(taken));
  first->launch(one);
  first.reset();
  EXPECT_TRUE(comes_back(taken));
}

TEST_F(ExecLifetime, AnExecThatWasNeverLaunchedDoesNotShortenAnothersLaunch) {
  cargo taken = make_cargo();
  {
    graph const source = captured_behind_flag(taken);
    graph_exec busy(source);
    graph_exec const idle(source);
    busy.launch(two);
  }
  expect_back_after_the_launch(taken);
}

TEST_F(ExecLifetime, TheGraphKeepsEverythingAfterItsExecIsGone) {
  cargo taken = make_cargo();
  {
    graph const source = captured(taken);
    { graph_exec(source).launch(two); }
    sync(two);
    EXPECT_TRUE(stays_kept(taken)) << "the references were not put back";
    { graph_exec(source).launch(two); }
    sync(two);
    EXPECT_EQ(cells.load(), 2);
  }
  EXPECT_TRUE(comes_back(taken));
}

TEST_F(ExecLifetime, TheExecKeepsEverythingAfterItsGraphIsGone) {
  cargo taken = make_cargo();
  {
    graph source = captured(taken);
    graph_exec exec(source);
    source = graph();
    EXPECT_TRUE(stays_kept(taken));
    exec.launch(two);
    sync(two);
    EXPECT_EQ(cells.load(), 1);
  }
  EXPECT_TRUE(comes_back(taken));
}

TEST_F(ExecLifetime, TheGraphMayGoWhileALaunchIsInFlightAndTheExecIsGone) {
  cargo taken = make_cargo();
  {
    graph const source = captured_behind_flag(taken);
    graph_exec(source).launch(two);
    EXPECT_TRUE(is_kept(taken));
  }
  expect_back_after_the_launch(taken);
}

TEST_F(ExecLifetime, ThePoolMayGoFirst) {
  auto taken = std::make_unique<cargo>(make_cargo());
  fate_ptr const fate = taken->fate;
  {
    graph_exec exec(captured(*taken));
    taken.reset();
    EXPECT_FALSE(wait_until([&] { return counts.alive() == 0; }, std::chrono::milliseconds(50)));
    exec.launch(two);
    sync(two);
    EXPECT_EQ(counts.alive(), 1);
    EXPECT_FALSE(fate->was_destroyed());
  }
  EXPECT_TRUE(fate->wait());
  EXPECT_TRUE(wait_until([&] { return counts.alive() == 0; }));
}

TEST_F(ExecLifetime, ThePoolMayGoWhileALaunchIsInFlight) {
  auto taken = std::make_unique<cargo>(make_cargo());
  {
    graph_exec const exec = in_flight(*taken);
    taken.reset();
  }
  EXPECT_TRUE(stays_false([&] { return counts.alive() == 0; }));
  flag.raise();
  EXPECT_TRUE(wait_until([&] { return counts.alive() == 0; }));
}

}  // namespace
}  // namespace escrow::test
