// Calls that fail for good: the end of a launch that cannot be recorded, and calls that give back
// and cannot.
#include <array>
#include <atomic>
#include <thread>

#include "../faults/exec_operations.hpp"

namespace escrow::test {
namespace {

constexpr std::uint64_t for_good = 1'000'000;

class UnrecordedLaunch : public testing::Test {
 protected:
  void TearDown() override {
    sim::clear_faults();
    world.end_copies();
    world.source.reset();
    world.end_execs();
    world.flag.raise();
    world.pool.reset();
    EXPECT_TRUE(world.settle()) << "drain() hangs";
    EXPECT_EQ(world.mismatches.load(), 0);
  }

  // Launches with every record failing, and every wait for the stream, by which the launch is
  // enqueued all the same.
  void launch_unrecorded(graph_exec& which, cudaStream_t stream) {
    sim::fail_call("cudaEventRecord", cudaErrorUnknown, 1, for_good);
    sim::fail_call("cudaStreamSynchronize", cudaErrorUnknown, 1, for_good);
    try {
      which.launch(stream);
      ADD_FAILURE() << "the failure was not reported";
    } catch (cuda_error const& error) {
      EXPECT_STREQ(error.api(), "cudaEventRecord");
      EXPECT_EQ(error.status(), cudaErrorUnknown);
    }
    sim::clear_faults();
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
    world.flying[0] = true;
    ++world.expected_runs;
  }
  static bool launches(graph_exec& which, cudaStream_t stream) {
    try {
      which.launch(stream);
      return true;
    } catch (cuda_error const& error) {
      EXPECT_STRNE(error.api(), "cudaEventRecord") << "which would mean that the graph runs";
      return false;
    }
  }

  exec_world world;
};

TEST_F(UnrecordedLaunch, IsWaitedForIfItsEndCannotBeRecorded) {
  world.exec.emplace(*world.source);
  world.rival.emplace(*world.source);
  world.flag.raise();
  sim::fail_call_here("cudaEventRecord", cudaErrorUnknown, 1, 2);
  world.launch(*world.exec, world.one);
  sim::clear_faults();
  EXPECT_EQ(cudaStreamQuery(world.one), cudaSuccess) << "the launch is not done";
  EXPECT_TRUE(launches(*world.rival, world.other));
  ++world.expected_runs;
}

TEST_F(UnrecordedLaunch, IsRefusedToRivalsUntilTheNextOneOfTheSameExec) {
  world.exec.emplace(*world.source);
  world.rival.emplace(*world.source);
  launch_unrecorded(*world.exec, world.one);
  EXPECT_FALSE(launches(*world.rival, world.other));
  world.launch(*world.exec, world.one);
  world.launch(*world.rival, world.other);
  expect_end_in_flight(world);
}

TEST_F(UnrecordedLaunch, OfOneTryIsRecordedByTheSecond) {
  world.exec.emplace(*world.source);
  sim::fail_call_here("cudaEventRecord", cudaErrorUnknown);
  world.launch(*world.exec, world.one);
  world.launch(*world.exec, world.other);
  expect_end_in_flight(world);
}

TEST_F(UnrecordedLaunch, KeepsWhatItsExecHeldForEverAndCountsIt) {
  world.exec.emplace(*world.source);
  launch_unrecorded(*world.exec, world.one);
  world.end_copies();
  world.source.reset();
  world.exec.reset();
  EXPECT_EQ(world.worker->stats().leaked, 1u);
  EXPECT_GE(world.errors->size(), 1u);
  world.flag.raise();
  EXPECT_TRUE(world.settle()) << "drain() hangs";
  EXPECT_EQ(world.owners.front().times(), 0);
  EXPECT_EQ(world.pool->stats().in_graphs, exec_world::slots_of_graph);
  EXPECT_FALSE(world.worker->stop_for(generous));
  world.pool.reset();
  EXPECT_EQ(world.counts.alive(), static_cast<int>(exec_world::slots_of_graph));
}

TEST_F(UnrecordedLaunch, IsHealedByALaunchAfterAnUpdateToTheSameGraph) {
  world.exec.emplace(*world.source);
  world.rival.emplace(*world.source);
  launch_unrecorded(*world.exec, world.one);
  world.exec->update(*world.source);
  EXPECT_TRUE(launches(*world.exec, world.one)) << "CUDA orders an exec with itself";
  ++world.expected_runs;
  EXPECT_TRUE(launches(*world.rival, world.other));
}

TEST_F(UnrecordedLaunch, LeavesAnExecUsableAfterAnUpdateToAnotherGraph) {
  world.second.emplace(world.captured(2));
  world.exec.emplace(*world.source);
  launch_unrecorded(*world.exec, world.one);
  world.exec->update(*world.second);
  EXPECT_TRUE(launches(*world.exec, world.one));
  EXPECT_EQ(world.worker->stats().leaked, 1u) << "what the first launch uses";
}

TEST_F(UnrecordedLaunch, IsHealedByALaunchAfterAnUpdateToAGraphThatHoldsNothing) {
  world.second.emplace(world.source->clone());
  hoist(*world.second).release();
  world.exec.emplace(*world.source);
  world.rival.emplace(*world.source);
  launch_unrecorded(*world.exec, world.one);
  world.exec->update(*world.second);
  EXPECT_FALSE(launches(*world.rival, world.other));
  EXPECT_TRUE(launches(*world.exec, world.one));
  EXPECT_TRUE(launches(*world.rival, world.other));
}

// ThreadSanitizer sees whether the end of the exec's launches is written under the lock under which
// the rival reads it.
TEST_F(UnrecordedLaunch, LeavesItsEndUnderTheLockOfItsRivalsAfterAnUpdateToAnotherGraph) {
  world.flag.raise();
  world.second.emplace(world.captured(2));
  world.exec.emplace(*world.source);
  world.rival.emplace(*world.source);
  launch_unrecorded(*world.exec, world.one);
  world.exec->update(*world.second);
  std::atomic<bool> was_launched{false};
  std::thread beside([&] {
    // Relaxed, here and below: the lock alone orders the two launches.
    while (!was_launched.load(std::memory_order_relaxed)) std::this_thread::yield();
    world.rival->launch(world.other);
  });
  world.exec->launch(world.one);
  was_launched.store(true, std::memory_order_relaxed);
  beside.join();
}

// Every call of one function fails while the operation lasts, however often it is tried.
class ExecCallFault : public testing::TestWithParam<std::tuple<operation, char const*>> {
 protected:
  void TearDown() override { sim::clear_faults(); }

  static void expect_graphs_alive(exec_world const& world) {
    for (std::optional<graph> const* const each :
         {&world.source, &world.second, &world.copy, &world.parent}) {
      std::size_t nodes = 0;
      if (!*each) continue;
      EXPECT_EQ(cudaGraphGetNodes((*each)->get(), nullptr, &nodes), cudaSuccess)
          << "a graph is gone";
    }
    static_cast<void>(cudaGetLastError());
  }
  // Things that did not come back.
  static std::size_t missing(exec_world const& world) {
    std::size_t count = static_cast<std::size_t>(world.counts.alive());
    for (watched_owner const& each : world.owners) {
      EXPECT_LE(each.times(), 1);
      if (!each.is_gone()) ++count;
    }
    return count;
  }
};

TEST_P(ExecCallFault, FreesNothingEarlyHangsNothingAndCountsWhatItKeeps) {
  auto const& [scenario, api] = GetParam();
  sim::counts const before = sim::alive();
  {
    auto const prepared = scenario.prepare();
    auto& world = static_cast<exec_stage&>(*prepared);
    sim::fail_call(api, cudaErrorUnknown, 1, for_good);
    // In place of a record the stream is waited for, which the flag would block.
    if (std::string{api} == "cudaEventRecord") {
      sim::fail_call("cudaStreamSynchronize", cudaErrorUnknown, 1, for_good);
    }
    bool threw = false;
    try {
      scenario.act(world);
    } catch (cuda_error const&) {
      threw = true;
    }
    sim::clear_faults();
    expect_graphs_alive(world);
    // A launch that ran is no failure to be tried again; and into a graph whose re-opening could
    // not be ended, CUDA goes on to capture.
    if (threw && std::string{api} != "cudaEventRecord" &&
        std::string{api} != "cudaStreamEndCapture") {
      EXPECT_NO_THROW(scenario.act(world)) << "it cannot be tried again";
    }
    world.end_copies();
    world.source.reset();
    world.end_execs();
    expect_nothing_freed_early(world);
    world.flag.raise();
    world.pool.reset();
    EXPECT_TRUE(world.settle()) << "drain() hangs";
    sim::counts const after = sim::alive();
    bool const is_refused = after.graphs > before.graphs || after.execs > before.execs;
    if (!is_refused && missing(world) != 0) {
      EXPECT_GT(world.worker->stats().leaked, 0u) << missing(world) << " things are lost";
    }
    EXPECT_EQ(world.mismatches.load(), 0);
  }
  EXPECT_EQ(sim::calls_in_callbacks(), 0u);
}

std::string name_of(testing::TestParamInfo<std::tuple<operation, char const*>> const& info) {
  return identifier_of(std::get<0>(info.param)) + "_" + std::get<1>(info.param);
}

INSTANTIATE_TEST_SUITE_P(
    Every, ExecCallFault,
    testing::Combine(testing::ValuesIn(exec_operations()),
                     testing::Values("cudaEventQuery", "cudaEventRecord", "cudaEventSynchronize",
                                     "cudaGetDevice", "cudaGraphAddChildGraphNode",
                                     "cudaGraphChildGraphNodeGetGraph", "cudaGraphClone",
                                     "cudaGraphDestroy", "cudaGraphDestroyNode",
                                     "cudaGraphExecDestroy", "cudaGraphExecUpdate",
                                     "cudaGraphGetNodes", "cudaGraphInstantiate", "cudaGraphLaunch",
                                     "cudaGraphNodeGetType", "cudaGraphReleaseUserObject",
                                     "cudaGraphRetainUserObject", "cudaGraphDebugDotPrint",
                                     "cudaStreamEndCapture", "cudaStreamGetCaptureInfo",
                                     "cudaStreamWaitEvent", "cudaThreadExchangeStreamCaptureMode",
                                     "cudaUserObjectCreate", "cudaUserObjectRelease",
                                     "cudaUserObjectRetain")),
    name_of);

}  // namespace
}  // namespace escrow::test
