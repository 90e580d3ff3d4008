// How long an exec keeps what its work uses: with launches in flight, whatever of exec, stream,
// thread, pool and deleter is destroyed first, and after an update; and graphs whose handle was
// another graph's before.
#include <chrono>
#include <optional>
#include <ostream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "world.hpp"

namespace escrow::test {
namespace {

struct InFlight;

/// A way to launches that wait for the flag. Exec and graph are destroyed afterwards.
struct launching {
  char const* name;
  int launches;
  void (InFlight::*launch)(graph_exec exec, graph const& source);

  friend void PrintTo(launching const& each, std::ostream* out) { *out << each.name; }
};

struct InFlight : world, testing::WithParamInterface<launching> {
  void on_one_stream(graph_exec exec, graph const&) { exec.launch(two); }
  void on_many_streams(graph_exec exec, graph const&) {
    exec.launch(two);
    exec.launch(three);
    exec.launch(one);
  }
  void behind_other_work(graph_exec exec, graph const&) {
    hold_up(three);
    exec.launch(three);
  }
  void on_a_stream_that_is_destroyed(graph_exec exec, graph const&) {
    exec.launch(two);
    owned_stream const passing = make_stream();
    exec.launch(passing);
  }
  void on_the_legacy_stream(graph_exec exec, graph const&) { exec.launch(cudaStreamLegacy); }
  void on_a_thread_that_ends(graph_exec exec, graph const&) {
    std::thread([&] { exec.launch(cudaStreamPerThread); }).join();
  }
  void destroyed_on_another_thread(graph_exec exec, graph const&) {
    exec.launch(two);
    std::thread([ended = std::move(exec)] {}).join();
  }
  void moved(graph_exec exec, graph const&) {
    exec.launch(two);
    graph_exec const moved_to = std::move(exec);
  }
  void assigned_over(graph_exec exec, graph const&) {
    exec.launch(two);
    exec = graph_exec(graph());
  }
  void updated_to_its_own_graph(graph_exec exec, graph const& source) {
    exec.launch(two);
    exec.update(source);
  }
  void by_a_launcher(graph_exec exec, graph const&) {
    stream_launcher launcher(std::move(exec), two);
    launcher.launch();
    launcher.launch();
  }
  void by_a_launcher_that_released_it(graph_exec exec, graph const&) {
    stream_launcher launcher(std::move(exec), two);
    launcher.launch();
    exec = launcher.release();
  }
  void by_a_launcher_after_a_flush(graph_exec exec, graph const&) {
    stream_launcher launcher(std::move(exec), two);
    hold_up(two);
    launcher.flush();
    launcher.launch();
    launcher.flush();
    launcher.launch();
  }
  void by_a_launcher_that_is_assigned_over(graph_exec exec, graph const&) {
    stream_launcher launcher(std::move(exec), two);
    launcher.launch();
    launcher = stream_launcher(graph_exec(graph()), three);
  }
  void by_a_launcher_beside_another_exec(graph_exec exec, graph const& source) {
    graph_exec const idle(source);
    by_a_launcher(std::move(exec), source);
  }
  void beside_an_exec_that_is_not_launched(graph_exec exec, graph const& source) {
    graph_exec const idle(source);
    exec.launch(two);
  }
};

INSTANTIATE_TEST_SUITE_P(
    Launches, InFlight,
    testing::Values(
        launching{"OnOneStream", 1, &InFlight::on_one_stream},
        launching{"OnManyStreams", 3, &InFlight::on_many_streams},
        launching{"BehindOtherWork", 1, &InFlight::behind_other_work},
        launching{"OnAStreamThatIsDestroyed", 2, &InFlight::on_a_stream_that_is_destroyed},
        launching{"OnTheLegacyStream", 1, &InFlight::on_the_legacy_stream},
        launching{"OnAThreadThatEnds", 1, &InFlight::on_a_thread_that_ends},
        launching{"DestroyedOnAnotherThread", 1, &InFlight::destroyed_on_another_thread},
        launching{"Moved", 1, &InFlight::moved},
        launching{"AssignedOver", 1, &InFlight::assigned_over},
        launching{"UpdatedToItsOwnGraph", 1, &InFlight::updated_to_its_own_graph},
        launching{"ByALauncher", 2, &InFlight::by_a_launcher},
        launching{"ByALauncherThatReleasedIt", 1, &InFlight::by_a_launcher_that_released_it},
        launching{"ByALauncherAfterAFlush", 2, &InFlight::by_a_launcher_after_a_flush},
        launching{"ByALauncherThatIsAssignedOver", 1,
                  &InFlight::by_a_launcher_that_is_assigned_over},
        launching{"ByALauncherBesideAnotherExec", 2, &InFlight::by_a_launcher_beside_another_exec},
        launching{"BesideAnExecThatIsNotLaunched", 1,
                  &InFlight::beside_an_exec_that_is_not_launched}),
    [](auto const& each) { return std::string(each.param.name); });

TEST_P(InFlight, KeepsEverythingUntilTheLastLaunchIsDone) {
  cargo taken = make_cargo();
  {
    graph const source = captured_behind_flag(taken);
    (this->*GetParam().launch)(graph_exec(source), source);
    EXPECT_TRUE(is_kept(taken)) << "the graph is there";
  }
  EXPECT_TRUE(stays_kept(taken));
  EXPECT_FALSE(drains_soon()) << "what a launch in flight uses counts as reclaimed";
  EXPECT_EQ(cells.load(2), 0) << "the flag does not hold the launch";
  flag.raise();
  EXPECT_TRUE(drained());
  EXPECT_TRUE(is_released(taken));
  EXPECT_TRUE(have_ended(GetParam().launches));
}

class ExecLifetime : public world {};

TEST_F(ExecLifetime, AssignmentReleasesWhatTheTargetHeldAndNotWhatTheSourceHolds) {
  cargo of_target = make_cargo();
  cargo of_source = make_cargo();
  graph_exec target(captured(of_target));
  {
    graph_exec source(captured(of_source));
    target = std::move(source);
  }
  EXPECT_TRUE(is_released(of_target));
  graph_exec& same = target;
  target = std::move(same);
  ASSERT_NE(target.get(), nullptr);
  target.launch(two);
  sync(two);
  EXPECT_TRUE(stays_kept(of_source));
}

TEST_F(ExecLifetime, AStoppedDeleterGetsBackWhatExecsHold) {
  cargo taken = make_cargo();
  {
    graph source = captured_behind_flag(taken);
    graph_exec before(source);
    before.launch(two);
    EXPECT_FALSE(worker->stop_for(std::chrono::milliseconds(20))) << "a graph owes something";
    graph_exec after(source);
    source = graph();
    after.launch(three);
  }
  EXPECT_TRUE(stays_false([&] { return taken.fate->was_destroyed(); }));
  flag.raise();
  EXPECT_TRUE(is_released(taken.fate));
  EXPECT_TRUE(wait_until([&] { return worker->stop_for({}); })) << "nothing is owed any more";
}

TEST_F(ExecLifetime, WhatTwoDeletersOwnIsReclaimedByEachOfThem) {
  deleter_options named;
  named.thread_name = "other";
  deleter other(named);
  cargo taken = make_cargo();
  fate_ptr const fate = make_fate();
  {
    graph_exec exec(captured([&](cudaStream_t on) {
      load(taken, on);
      other.retire(on, probe(fate));
    }));
    EXPECT_TRUE(exec.is_bare());
    EXPECT_TRUE(has_no_user_object());
    exec.launch(two);
    sync(two);
    EXPECT_TRUE(stays_kept(taken));
    EXPECT_TRUE(is_out(fate));
  }
  EXPECT_TRUE(is_released(taken));
  EXPECT_TRUE(fate->wait());
  EXPECT_EQ(fate->thread_name, "other");
}

// The longest way to a release: an exec is an owner itself, what its launch used is released when
// that is done, and releases more. The drain begins while the launch goes on, so that each step
// comes behind the drain's marker.
TEST_F(ExecLifetime, ADrainWaitsForAllThatAnExecWhichIsRetiredInFlightReleases) {
  deleter polled{deleter_options{.own_worker = false}};
  fate_ptr const fate = make_fate();
  {
    pool_options chosen = options(1);
    chosen.deleter = &polled;
    block_pool pool = make_pool(chosen);
    auto const shared = make_stream_shared_by<probe>(polled, fate);
    graph_exec exec(captured_behind_flag([&](cudaStream_t on) {
      record_stream(shared, on);
      polled.retire(on, pool.claim(on));
    }));
    exec.launch(two);
    polled.retire(std::move(exec));
  }
  std::jthread const raising([this] {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    flag.raise();
  });
  polled.drain();
  EXPECT_EQ(fate->times(), 1);
  EXPECT_EQ(counts.alive(), 0) << "the resource of a destroyed pool";
}

// What an update swaps, and when the old is released.
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
