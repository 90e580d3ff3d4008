// SPDX-License-Identifier: Apache-2.0
// Several runs of a graph by one call: how many, in which order, with what they hold, and what an
// update or a changed node makes of the copies.
#include <algorithm>
#include <string>
#include <utility>

#include "nodes_world.hpp"

namespace escrow::test {
namespace {

class LaunchMany : public world {
 protected:
  static constexpr std::size_t copies = 4;

  // A run counts itself in the first cell.
  [[nodiscard]] static graph_exec exec_of(graph_ref source, std::size_t its_copies = copies) {
    return graph_exec(source, {.copies = its_copies});
  }
  // So many runs of the graph, of which each adds `value` to the first cell.
  void expect_runs(graph_exec& exec, std::size_t times, int value = 1) {
    sync(two);
    int const before = cells.load(0);
    exec.launch_many(two, times);
    sync(two);
    EXPECT_EQ(cells.load(0) - before, static_cast<int>(times) * value) << times;
  }
  // The calls of a function of CUDA that `work` makes.
  static void expect_calls([[maybe_unused]] char const* function,
                           [[maybe_unused]] std::uint64_t expected, auto&& work) {
#ifdef ESCROW_TEST_RUNTIME_SIM
    auto const before = sim::calls(function);
    work();
    EXPECT_EQ(sim::calls(function) - before, expected) << function;
#else
    work();
#endif
  }
  static void expect_launches(std::uint64_t expected, auto&& launch) {
    expect_calls("cudaGraphLaunch", expected, launch);
  }
  [[nodiscard]] graph adding(int value) {
    return captured([&](cudaStream_t on) { must(launch_add(on, cells.data(), value)); });
  }

  void TearDown() override {
    taken.reset();
    world::TearDown();
  }

  std::optional<cargo> taken{make_cargo()};
};

TEST_F(LaunchMany, RunsTheGraphSoOften) {
  graph const source = captured(*taken);
  for (std::size_t const its_copies : {0U, 1U, 2U, 4U, 7U}) {
    graph_exec exec = exec_of(source, its_copies);
    EXPECT_EQ(exec.copies(), std::max<std::size_t>(its_copies, 1));
    exec.upload(two);
    for (std::size_t const times : {0U, 1U, 2U, 3U, 4U, 8U, 9U, 30U}) expect_runs(exec, times);
    run(exec);
  }
  graph const bare = captured_without_cargo();
  graph_exec exec = exec_of(bare);
  for (std::size_t const times : {0U, 1U, 9U}) expect_runs(exec, times);
}

TEST_F(LaunchMany, TakesOneCallForItsCopiesAndOneForEachRunThatIsLeft) {
  graph_exec exec = exec_of(captured(*taken));
  expect_launches(0, [&] { exec.launch_many(two, 0); });
  expect_launches(3, [&] { exec.launch_many(two, 3); });
  expect_launches(1, [&] { exec.launch_many(two, 4); });
  expect_launches(2 + 3, [&] { exec.launch_many(two, 11); });
  graph_exec single = exec_of(captured_without_cargo(), 0);
  expect_launches(11, [&] { single.launch_many(two, 11); });
  sync(two);
}

// One of its execs may never be launched, and what is uploaded and not launched slows all graphs.
TEST_F(LaunchMany, LeavesTheUploadOfCopiesToTheirLaunches) {
  graph const source = captured(*taken);
  graph_exec exec = exec_of(source);
  expect_calls("cudaGraphUpload", 0, [&] { exec.upload(two); });
  expect_runs(exec, 9);
  expect_calls("cudaGraphUpload", 0, [&] { exec.upload(two); });
  graph_exec single = exec_of(source, 0);
  expect_calls("cudaGraphUpload", 1, [&] { single.upload(two); });
  expect_runs(single, 2);
}

// Each run finds the memory as the one before left it.
TEST_F(LaunchMany, RunsOneAfterAnother) {
  device_ints memory{4};
  must(launch_fill(one, memory.data(), 4, 1));
  graph const source = captured([&](cudaStream_t on) {
    must(launch_check(on, memory.data(), 4, 1, mismatches.data()));
    must(launch_fill(on, memory.data(), 4, 2));
    must(launch_check(on, memory.data(), 4, 2, mismatches.data()));
    must(launch_fill(on, memory.data(), 4, 1));
    must(launch_add(on, cells.data(), 1));
  });
  graph_exec exec = exec_of(source);
  sync(one);
  expect_runs(exec, 25);
}

TEST_F(LaunchMany, KeepsWhatTheGraphHoldsUntilTheLastRun) {
  {
    graph_exec exec = exec_of(captured(*taken));
    EXPECT_TRUE(exec.is_bare());
    EXPECT_TRUE(has_no_user_object()) << "the copies have user objects";
    hold_up(two);
    exec.launch_many(two, 6);
  }
  EXPECT_TRUE(stays_kept(*taken));
  flag.raise();
  EXPECT_TRUE(is_released(*taken));
  EXPECT_EQ(cells.load(0), 6);
}

TEST_F(LaunchMany, IsOrderedWithOtherExecsAsOneLaunch) {
  graph const source = captured_behind_flag(*taken);
  graph_exec exec = exec_of(source);
  graph_exec other(source);
  exec.launch_many(two, 5);
  ASSERT_TRUE(have_started(1));
  other.launch(three);
  exec.launch_many(one, 4);
  EXPECT_TRUE(stays_false([&] { return cells.load(1) > 1; })) << "the launches overlap";
  flag.raise();
  EXPECT_TRUE(have_ended(10));
}

// CUDA orders launches of one exec on any streams, but the copies are another.
TEST_F(LaunchMany, IsOrderedWithItselfOnAnotherStream) {
  graph const holding = captured_behind_flag(*taken);
  graph const bare = captured_behind_flag([](cudaStream_t) {});
  for (graph const* const source : {&holding, &bare}) {
    for (bool const is_updated : {false, true}) {
      cells.store(1, 0);
      cells.store(2, 0);
      flag.lower();
      graph_exec exec = exec_of(*source);
      exec.launch(one);
      ASSERT_TRUE(have_started(1));
      if (is_updated) exec.update(*source);
      exec.launch_many(two, 4);
      exec.launch(three);
      exec.launch_many(one, 9);
      EXPECT_TRUE(stays_false([&] { return cells.load(1) > 1; })) << "the launches overlap";
      flag.raise();
      EXPECT_TRUE(have_ended(15));
      sync_all();
    }
  }
}

TEST_F(LaunchMany, UpdateChangesTheCopies) {
  graph_exec exec = exec_of(adding(1));
  expect_runs(exec, 9, 1);
  hold_up(two);
  exec.launch_many(two, 8);
  exec.update(adding(10));
  exec.launch_many(two, 5);
  flag.raise();
  sync(two);
  EXPECT_EQ(cells.load(0), 9 + 8 + 50);
  EXPECT_EQ(exec.copies(), copies);
  expect_launches(1, [&] { exec.launch_many(two, 4); });
  EXPECT_THROW(exec.update(captured_without_cargo()), cuda_error);
  expect_runs(exec, 9, 10);
}

class LaunchManyOfNodes : public nodes_world {
 protected:
  // The graph has no copies; a run adds 1 to the first cell.
  void expect_one_by_one(graph_exec& exec, int times, int value = 1) {
    int const before = cells.load(0);
    EXPECT_EQ(exec.copies(), 1U);
    exec.launch_many(two, static_cast<std::size_t>(times));
    sync(two);
    EXPECT_EQ(cells.load(0) - before, times * value);
  }
};

TEST_F(LaunchManyOfNodes, OneByOneAfterAChangedNodeUntilTheNextUpdate) {
  node const made = add_to(build(*built), 0);
  graph_exec exec(*built, {.copies = 4});
  fate_ptr const fate = make_fate();
  hold_up(two);
  exec.launch_many(two, 5);
  set(exec, made, kernel_node(add, {}, cells.data(), 10));
  exec.launch_many(two, 5);
  set(exec, made, kernel_node(add, {}, shared(fate), 100));
  flag.raise();
  sync(two);
  EXPECT_EQ(cells.load(0), 5 + 50);
  expect_one_by_one(exec, 9, 100);
  EXPECT_FALSE(fate->was_destroyed());
  exec.update(*built);
  EXPECT_TRUE(is_released(fate));
  EXPECT_EQ(exec.copies(), 4U);
  exec.launch_many(two, 4);
  sync(two);
  EXPECT_EQ(cells.load(0), 55 + 900 + 4);
}

TEST_F(LaunchManyOfNodes, OneByOneWithConditionalAndMemoryNodes) {
  {
    conditional_node const chosen = build(*built).add(if_node(build(*built).make_condition(1)));
    add_to(chosen.body(), 0);
    graph_exec exec(*built, {.copies = 4});
    expect_one_by_one(exec, 9);
  }
  graph other;
  allocation const memory = build(other).add(alloc_node(sizeof(int)));
  memory.add(kernel_node(add, {}, cells.data(), 1)).add(free_node(memory.address()));
  graph_exec exec(other, {.copies = 4});
  expect_one_by_one(exec, 9);
  exec.upload(two);
}

TEST_F(LaunchManyOfNodes, OfAGraphWithoutNodesDoesNothing) {
  graph_exec exec(*built, {.copies = 4});
  exec.launch_many(two, 9);
  sync(two);
}

TEST_F(LaunchMany, ByAStreamLauncherIsRecordedOnce) {
  graph_exec exec = exec_of(captured(*taken));
  stream_launcher launcher(std::move(exec), two);
  hold_up(two);
  launcher.launch_many(0);
  launcher.launch_many(9);
  launcher.launch();
  launcher.launch_many(4);
  launcher.flush();
  exec = launcher.release();
  { graph_exec const ended = std::move(exec); }
  EXPECT_TRUE(stays_kept(*taken));
  flag.raise();
  EXPECT_TRUE(is_released(*taken));
  EXPECT_EQ(cells.load(0), 14);
  test::expect_refused({{"stream_launcher::launch_many: ", {"was released", "make another"}, [&] {
                           launcher.launch_many(1);
                         }}});
}

TEST_F(LaunchMany, IsRefusedWhereALaunchIs) {
  graph_exec exec = exec_of(captured(*taken));
  {
    test::capture open{two, cudaStreamCaptureModeThreadLocal};
    expect_error<cuda_error>(
        [&] {
          exec.launch_many(two, 9);
          return 0;
        },
        {"cudaGraphLaunch", "`stream` is being captured"});
  }
  test::expect_refused(
      {{"graph_exec::launch_many: ",
        {"`times` is 18446744073709551615", "negative"},
        [&] { exec.launch_many(two, static_cast<std::size_t>(-1)); }},
       {"graph_exec::graph_exec: ", {"`options.copies` is 18446744073709551615"}, [&] {
          return exec_of(captured_without_cargo(), static_cast<std::size_t>(-1));
        }}});
  graph_exec const taker(std::move(exec));
  EXPECT_EQ(exec.copies(), 1U);  // NOLINT(bugprone-use-after-move): that is tested
  exec_set set;
  test::expect_refused(
      {{"graph_exec::launch_many: ", {"moved from"}, [&] { exec.launch_many(two, 0); }},
       {"exec_set::add: ", {"`options.copies`", "leave it 0"}, [&] {
          return set.add(captured_without_cargo(), {.copies = 2});
        }}});
}

#ifdef ESCROW_TEST_RUNTIME_SIM

class LaunchManyFault : public LaunchMany {
 protected:
  void TearDown() override {
    sim::clear_faults();
    LaunchMany::TearDown();
  }
};

TEST_F(LaunchManyFault, TellsHowManyRunsWereEnqueuedAndKeepsWhatTheyUse) {
  for (auto const& [failing, enqueued] : {std::pair{1U, 0}, {2U, 4}, {3U, 8}, {4U, 9}}) {
    cargo its = make_cargo();
    int const before = cells.load(0);
    {
      graph_exec exec = exec_of(captured(its));
      hold_up(two);
      sim::fail_call("cudaGraphLaunch", cudaErrorMemoryAllocation, failing);
      std::string const said = std::to_string(enqueued) + " of the runs were enqueued before";
      expect_error<cuda_error>(
          [&] {
            exec.launch_many(two, 10);
            return 0;
          },
          {"graph_exec::launch_many: ", "cudaGraphLaunch", enqueued == 0 ? "" : said});
    }
    if (enqueued != 0) {
      EXPECT_TRUE(stays_kept(its)) << enqueued;
    }
    flag.raise();
    EXPECT_TRUE(is_released(its)) << enqueued;
    sync(two);
    EXPECT_EQ(cells.load(0) - before, enqueued);
    flag.lower();
  }
}

TEST_F(LaunchManyFault, TellsHowManyRunsWereEnqueuedAlsoIfTheirEndIsNotKnown) {
  errors_expected = true;
  lost = 1;
  owed = 2;
  {
    graph_exec exec = exec_of(captured(*taken));
    sim::fail_call("cudaGraphLaunch", cudaErrorMemoryAllocation, 2);
    for (char const* const each : {"cudaEventRecord", "cudaStreamSynchronize"}) {
      sim::fail_call(each, cudaErrorMemoryAllocation, 1, 100);
    }
    expect_error<cuda_error>(
        [&] {
          exec.launch_many(two, 10);
          return 0;
        },
        {"graph_exec::launch_many: ", "cudaEventRecord", "4 of the runs were enqueued before"});
    sim::clear_faults();
  }
  EXPECT_EQ(worker->stats().leaked, 1U) << "the owner";
}

TEST_F(LaunchManyFault, OfACallThatMakesTheCopiesLeavesTheGraphAsItWas) {
  {
    graph const source = captured(*taken);
    for (char const* const failing :
         {"cudaGraphCreate", "cudaGraphAddChildGraphNode", "cudaGraphInstantiate"}) {
      sim::fail_call(failing, cudaErrorMemoryAllocation);
      expect_error<cuda_error>([&] { return exec_of(source); },
                               {"graph_exec::graph_exec: ", failing});
      graph_exec exec = exec_of(source);
      expect_runs(exec, 5);
      sim::fail_call(failing, cudaErrorMemoryAllocation);
      expect_error<cuda_error>(
          [&] {
            exec.update(source);
            return 0;
          },
          {"graph_exec::update: ", failing});
      expect_runs(exec, 5);
      exec.update(source);
      expect_runs(exec, 5);
    }
  }
  EXPECT_TRUE(is_released(*taken));
}

#endif

}  // namespace
}  // namespace escrow::test
