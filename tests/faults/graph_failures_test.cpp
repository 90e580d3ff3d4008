// SPDX-License-Identifier: Apache-2.0
// Calls that fail more than once in a row, or in unusual places: ends of launches that cannot be
// recorded, references that cannot be taken off a graph, captures that cannot be ended, libraries.
#include "graph_stages.hpp"
#include "world.hpp"

namespace escrow::test {
namespace {

// CUDA waits for the launches of an exec with conditional nodes as it destroys it, and blocks other
// threads meanwhile, so Escrow has to know that they are done; also if it could not record an
// event.
class ConditionalExec : public world {
 protected:
  ConditionalExec() { errors_expected = true; }
};

TEST_F(ConditionalExec, WhoseLaunchWasNotRecordedDoesNotBlockOtherThreadsAtItsEnd) {
  owned_graph source = make_graph();
  add_kernel(add_conditional(source), wait_flag_call(flag.get()));
  std::optional<graph_exec> exec(source.get());
  std::atomic<bool> is_over{false};
  std::atomic<bool> is_built{false};
  auto const records = sim::calls("cudaEventRecord");
  std::jthread const ending([&] {
    sim::fail_call_here("cudaEventRecord", cudaErrorMemoryAllocation, 1, 2);
    try {
      exec->launch(two);
    } catch (cuda_error const&) {
      static_cast<void>(cudaGetLastError());
    }
    exec.reset();
    is_over.store(true, std::memory_order_release);
  });
  EXPECT_TRUE(wait_until([&] { return sim::calls("cudaEventRecord") >= records + 2; }));
  EXPECT_TRUE(stays_false([&] { return is_over.load(std::memory_order_acquire); }));
  std::jthread const building([&] {
    owned_stream const own = make_stream();
    graph_exec(tiny_graph().get()).launch(own.get());
    sync(own);
    is_built.store(true, std::memory_order_release);
  });
  EXPECT_TRUE(wait_until([&] { return is_built.load(std::memory_order_acquire); }))
      << "other threads wait for the launch";
  flag.raise();
}

class failing_exec_test : public testing::Test {
 protected:
  void TearDown() override {
    sim::clear_faults();
    in.in_flight.reset();
    static_cast<void>(in.end_after_failures("cudaEventRecord"));
  }
  /// Launches while cudaEventRecord fails so often. Whether launch() throws is up to it: the graph
  /// runs.
  bool launch_unrecorded(std::uint64_t times = for_good) {
    sim::fail_call("cudaEventRecord", cudaErrorUnknown, 1, times);
    std::string const thrown = message_of<cuda_error>([&] { in.exec->launch(in.one); });
    bool const threw = thrown != "nothing was thrown";
    sim::clear_faults();
    EXPECT_TRUE(!threw || thrown.find("cudaEventRecord") != std::string::npos) << thrown;
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
    ++in.expected_runs;
    return threw;
  }
  void launch(graph_exec& which) {
    EXPECT_NO_THROW(which.launch(in.other));
    ++in.expected_runs;
  }

  exec_stage in;
};

/// A launch that ends by itself, and that the library waits for in place of the record: one that
/// fails in two tries, or always.
class UnrecordedEnd : public failing_exec_test, public testing::WithParamInterface<std::uint64_t> {
 protected:
  UnrecordedEnd() {
    in.flag.raise();
    in.exec.emplace(*in.source);
    in.rival.emplace(*in.source);
    launch_unrecorded(GetParam());
    EXPECT_EQ(cudaStreamQuery(in.one), cudaSuccess) << "the launch is not done";
  }
};

INSTANTIATE_TEST_SUITE_P(Failures, UnrecordedEnd, testing::Values(2, for_good));

TEST_P(UnrecordedEnd, OfAnExecThatWasDestroyedLeavesTheOtherExecsOfTheGraphUsable) {
  in.exec.reset();
  launch(*in.rival);
  in.copy.emplace(in.source->clone());
  in.exec.emplace(*in.copy);
  launch(*in.exec);
  static_cast<void>(in.end(0));  // nothing is leaked
}

TEST_P(UnrecordedEnd, OfAnExecThatIsAliveLeavesTheOtherExecsOfTheGraphUsable) {
  launch(*in.rival);
  launch(*in.exec);
  static_cast<void>(in.end(0));
}

/// Also the wait fails, by which the launch is enqueued all the same.
class UnrecordedLaunch : public failing_exec_test {
 protected:
  void make_execs_and_launch() {
    in.exec.emplace(*in.source);
    in.rival.emplace(*in.source);
    sim::fail_call("cudaStreamSynchronize", cudaErrorUnknown, 1, for_good);
    EXPECT_TRUE(launch_unrecorded()) << "the failure was not reported";
    in.in_flight.set(0);
  }
  void expect_rival_is_refused() {
    std::string const thrown = message_of<cuda_error>([&] { in.rival->launch(in.other); });
    EXPECT_NE(thrown, "nothing was thrown");
    EXPECT_EQ(thrown.find("cudaEventRecord"), std::string::npos) << "so the graph runs: " << thrown;
  }
};

TEST_F(UnrecordedLaunch, IsRefusedToRivalsUntilTheNextOneOfTheSameExec) {
  make_execs_and_launch();
  expect_rival_is_refused();
  in.launch(*in.exec, in.one);
  in.launch(*in.rival, in.other);
  static_cast<void>(in.end(0));
}

TEST_F(UnrecordedLaunch, LeaksWhatItsExecHeldAndCountsIt) {
  make_execs_and_launch();
  in.rival.reset();
  in.source.reset();
  in.exec.reset();
  EXPECT_EQ(in.worker->stats().leaked, 1u);
  EXPECT_GE(in.errors->size(), 1u);
  in.flag.raise();
  EXPECT_TRUE(in.settle()) << "drain() hangs";
  EXPECT_EQ(in.fates.front()->times(), 0);
  EXPECT_EQ(in.pool->stats().in_graphs, exec_stage::slots_of_graph);
  EXPECT_FALSE(in.worker->stop_for(generous));
  in.pool.reset();
  EXPECT_EQ(in.counts.alive(), static_cast<int>(exec_stage::slots_of_graph));
}

TEST_F(UnrecordedLaunch, RefusesAnUpdateAndAChangeOfANodeUntilTheNextOneOfTheSameExec) {
  in.flag.raise();
  in.second.emplace(in.captured_work(2));
  make_execs_and_launch();
  auto const refuses = [](auto change) {
    std::string const thrown = message_of<cuda_error>(change);
    EXPECT_NE(thrown.find("launch the exec again before"), std::string::npos) << thrown;
  };
  refuses([&] { in.exec->update(*in.second); });
  node const first = nodes_in(*in.source).front();
  refuses([&] { set(*in.exec, first, host_node([] {})); });
  expect_rival_is_refused();
  launch(*in.exec);  // CUDA orders an exec with itself
  EXPECT_NO_THROW(in.exec->update(*in.second));
  launch(*in.rival);
}

// ThreadSanitizer sees whether the end of the exec's launches is written under the lock under which
// the rival reads it.
TEST_F(UnrecordedLaunch, LeavesAnExecUsableWhileARivalIsLaunched) {
  in.flag.raise();
  make_execs_and_launch();
  std::atomic<bool> was_launched{false};
  std::jthread const beside([&] {
    // Relaxed, here and below: the lock alone orders the two launches.
    while (!was_launched.load(std::memory_order_relaxed)) std::this_thread::yield();
    in.rival->launch(in.other);
  });
  EXPECT_NO_THROW(in.exec->launch(in.one));
  was_launched.store(true, std::memory_order_relaxed);
}

/// The same of a launcher's launches, at its end.
class UnrecordedFlush : public UnrecordedLaunch {
 protected:
  void launch_and_fail_to_flush() {
    in.exec.emplace(*in.source);
    in.launcher.emplace(std::move(*in.exec), in.one);
    in.launch_by_launcher();
    in.rival.emplace(*in.source);
    sim::fail_call("cudaEventRecord", cudaErrorUnknown, 1, for_good);
    sim::fail_call("cudaStreamSynchronize", cudaErrorUnknown, 1, for_good);
    EXPECT_THROW(in.launcher->flush(), cuda_error);
  }
};

TEST_F(UnrecordedFlush, IsRefusedToRivalsUntilTheNextOne) {
  launch_and_fail_to_flush();
  sim::clear_faults();
  expect_rival_is_refused();
  in.launcher->flush();
  in.launch(*in.rival, in.other);
  static_cast<void>(in.end(0));
}

TEST_F(UnrecordedFlush, IsMadeUpForByTheLaunchersEnd) {
  launch_and_fail_to_flush();
  sim::clear_faults();
  in.launcher.reset();
  in.launch(*in.rival, in.other);
  static_cast<void>(in.end(0));
}

TEST_F(UnrecordedFlush, AtTheEndLeaksWhatTheExecHeldAndCountsIt) {
  launch_and_fail_to_flush();
  in.launcher.reset();
  sim::clear_faults();
  expect_rival_is_refused();
  EXPECT_EQ(in.worker->stats().leaked, 1U);
  EXPECT_GE(in.errors->size(), 1U);
}

/// What execs claim and keep where references could not be moved: in three tries in a row.
class BareClaim : public failing_exec_test {};

TEST_F(BareClaim, DoesNotMatterToAChildBesideMemoryThatCouldNotBeNoted) {
  in.parent.emplace();
  allocation const memory = build(*in.parent).add(alloc_node(64));
  memory.add(free_node(memory.address()));  // CUDA takes no node off the parent from now on
  sim::fail_call_here("cudaGraphChildGraphNodeGetGraph", cudaErrorUnknown);
  in.parent->add_child(*in.source);
  sim::clear_faults();
  EXPECT_EQ(nodes_in(*in.parent).size(), 3U);
  in.exec.emplace(*in.parent);
  in.end_copies();
  in.source.reset();
  EXPECT_TRUE(in.settle());
  EXPECT_EQ(in.fates[0]->times(), 0);
  in.exec.reset();
  EXPECT_TRUE(wait_until([&] { return in.settle() && in.fates[0]->was_destroyed(); }));
}

TEST_F(BareClaim, IsNotChangedByAnUpdateIfASetCannotBeTakenOff) {
  in.second.emplace(in.captured_work(2));
  in.exec.emplace(*in.source);
  sim::fail_call_here("cudaGraphReleaseUserObject", cudaErrorUnknown, 1, 3);
  EXPECT_THROW(in.exec->update(*in.second), cuda_error);
  sim::clear_faults();
  EXPECT_TRUE(in.exec->is_bare());
  static_cast<void>(in.end(2));
}

// CUDA gives the handle of a graph that could not be taken over to the next graphs. What these hold
// is told apart all the same.
TEST(FailedGraph, LeavesNothingBehindThatMixesUpLaterGraphsWithItsHandle) {
  deleter worker{deleter_options{.own_worker = false}};
  owned_stream const stream = make_stream();
  auto const retired_in_capture = [&](fate_ptr const& fate) {
    capture captured{stream, cudaStreamCaptureModeRelaxed};
    worker.retire(stream, probe(fate));
    must(captured.end());
    return std::move(captured.graph());
  };
  for (int i = 0; i < 20; ++i) {
    sim::fail_call_here("cudaGetDevice", cudaErrorUnknown);
    EXPECT_THROW(graph(), cuda_error);
    sim::clear_faults();
    owned_graph first = retired_in_capture(make_fate());
    cudaGraph_t const handle = first.get();
    owned_exec exec = instantiate(first);
    first.reset();
    auto const fate = make_fate();
    owned_graph const second = retired_in_capture(fate);
    exec.reset();
    if (second.get() != handle) continue;
    static_cast<void>(worker.drain_for(std::chrono::milliseconds(20)));
    ASSERT_FALSE(fate->was_destroyed()) << "its graph is alive";
  }
}

TEST(FailedCapture, IsOverAfterAnEndThatFails) {
  owned_stream const stream = make_stream();
  capture_scope scope(stream);
  sim::fail_call_here("cudaStreamEndCapture", cudaErrorUnknown);
  EXPECT_THROW(static_cast<void>(scope.end()), cuda_error);
  EXPECT_TRUE(capture_of(stream).is_none()) << "the capture goes on";
}

TEST(LibraryFault, AnUnloadThatFailsIsTriedAgainAndReportedIfItAlwaysFails) {
  for (auto const& [times, errors] : {std::pair{2U, 0U}, std::pair{1000U, 1U}}) {
    SCOPED_TRACE(times);
    std::size_t const before = sim::alive().libraries;
    deleter its;
    sim::fail_call("cudaLibraryUnload", cudaErrorUnknown, 1, times);
    static_cast<void>(library::load(library_code(), its));
    its.drain();
    sim::clear_faults();
    EXPECT_EQ(sim::alive().libraries, before + errors);
    EXPECT_EQ(its.stats().errors, errors);
  }
}

}  // namespace
}  // namespace escrow::test
