// SPDX-License-Identifier: Apache-2.0
// stream_launcher: launches on one stream and thread, recorded together. What comes after them is
// refused, and never early. What the exec holds is released as after a graph_exec's launches:
// see exec_lifetime_test.cpp.
#include "world.hpp"

namespace escrow::test {
namespace {

class StreamLauncher : public world {
 protected:
  static constexpr int often = 5;
  static constexpr char const* is_due = "call flush() or launch() of that launcher";

  /// The graph has what is written: the slot of `taken`.
  [[nodiscard]] graph behind_flag() { return captured_behind_flag(*taken); }
  [[nodiscard]] stream_launcher on_two(graph const& source) {
    return stream_launcher(graph_exec(source), two);
  }
  /// Events that a launcher of an exec of this graph records: by its launches, and then by flush().
  [[nodiscard]] std::pair<std::uint64_t, std::uint64_t> records(graph_exec exec, cudaStream_t on) {
    stream_launcher launcher(std::move(exec), on);
    auto const before = sim::calls("cudaEventRecord");
    for (int i = 0; i < often; ++i) launcher.launch();
    auto const launched = sim::calls("cudaEventRecord");
    launcher.flush();
    launcher.flush();
    return {launched - before, sim::calls("cudaEventRecord") - launched};
  }
  /// `flag` holds back the first of four launches, and `behind` the third.
  void expect_last_waits_for_third(pinned_flag& behind) {
    flag.raise();
    EXPECT_TRUE(have_ended(2));
    EXPECT_TRUE(stays_false([&] { return cells.load(1) > 2; })) << "it does not wait for the third";
    behind.raise();
    EXPECT_TRUE(have_ended(4));
  }
  void expect_leaked(std::string const& why) {
    EXPECT_EQ(worker->stats().leaked, 1U) << "the owner";
    EXPECT_NE(errors->all().find(why), std::string::npos) << errors->all();
    errors_expected = true;
    lost = 1;
    owed = 2;
    flag.raise();
    sync_all();
    EXPECT_TRUE(stays_kept(*taken));
  }

  void TearDown() override {
    taken.reset();
    world::TearDown();
  }

  std::optional<cargo> taken{make_cargo()};
};

TEST_F(StreamLauncher, RecordsItsLaunchesTogether) {
  using counted = std::pair<std::uint64_t, std::uint64_t>;
  graph const shared = captured([&](cudaStream_t on) { retain(on, std::make_shared<int>(1)); });
  EXPECT_EQ(records(graph_exec(captured(*taken)), two), counted(0, 1));
  EXPECT_EQ(records(graph_exec(shared), two), counted(0, 1));
  EXPECT_EQ(records(graph_exec(captured_without_cargo()), two), counted(0, 0))
      << "nothing is released then";
}

TEST_F(StreamLauncher, IsRefusedForADefaultStreamThatIsBeingCaptured) {
  graph const source = captured(*taken);
  graph_exec exec(source);
  test::capture open{cudaStreamPerThread, cudaStreamCaptureModeRelaxed};
  expect_error<usage_error>([&] { return stream_launcher(std::move(exec), cudaStreamPerThread); },
                            {"stream_launcher::stream_launcher", "is being captured"});
  must(open.end());
  EXPECT_EQ(records(std::move(exec), two), (std::pair<std::uint64_t, std::uint64_t>(0, 1)))
      << "it was taken";
}

TEST_F(StreamLauncher, RecordsEachLaunchWhereItMust) {
  using counted = std::pair<std::uint64_t, std::uint64_t>;
  counted const each{often, 0};
  graph const source = captured(*taken);
  EXPECT_EQ(records(graph_exec(source), cudaStreamLegacy), each);
  EXPECT_EQ(records(graph_exec(source), cudaStreamPerThread), each);
  block_pool grouped = make_pool(with(options(1), &pool_options::group, sharing_group()));
  graph const of_group = captured([&](cudaStream_t on) { use(grouped, on); });
  EXPECT_EQ(records(graph_exec(of_group), two), each);
  owned_graph const conditional = make_graph();
  add_kernel(add_conditional(conditional), tiny_call());
  EXPECT_EQ(records(graph_exec(conditional.get()), two), each);
  {
    graph_exec const rival(source);
    EXPECT_EQ(records(graph_exec(source), two), each);
  }
  EXPECT_EQ(records(graph_exec(source), two), counted(0, 1)) << "the other exec has ended";
  sync_all();
}

TEST_F(StreamLauncher, RefusesWhatSharesItsSlotUntilItIsFlushed) {
  graph const source = behind_flag();
  graph const clone = source.clone();
  stream_launcher launcher = on_two(source);
  launcher.launch();
  graph_exec rival(clone);
  hoisted other = hoist(clone);
  exec_set set;
  auto const member = set.add(source.clone());
  expect_refused({{"graph_exec::launch: ", {is_due}, [&] { rival.launch(three); }},
                  {"hoisted::launch: ", {is_due}, [&] { other.launch(three, [] { FAIL(); }); }},
                  {"exec_set::launch: ", {is_due}, [&] { set.launch(member, three); }}});
  launcher.flush();
  expect_ordered([&] { rival.launch(three); });
  other.release();
}

TEST_F(StreamLauncher, FlushedLateDoesNotHideALaterLaunchOfAnother) {
  pinned_flag behind;
  graph const source = behind_flag();
  stream_launcher launcher = on_two(source);
  launcher.launch();
  graph_exec rival(source);
  rival.launch(two);
  must(launch_wait_flag(three, behind.get()));
  rival.launch(three);
  launcher.flush();
  graph_exec last(source);
  last.launch(one);
  expect_last_waits_for_third(behind);
}

TEST_F(StreamLauncher, WaitsForALaunchThatCameAfterAnotherOnItsStream) {
  pinned_flag behind;
  graph const source = behind_flag();
  stream_launcher launcher = on_two(source);
  launcher.launch();
  {
    graph_exec rival(source);
    rival.launch(two);
    must(launch_wait_flag(three, behind.get()));
    rival.launch(three);
  }
  launcher.launch();  // alone again
  expect_last_waits_for_third(behind);
}

// A copy to pageable memory blocks cudaGraphLaunch until it is done.
TEST_F(StreamLauncher, KeepsOthersFromLaunchingWhileItsOwnLaunchBlocks) {
  device_ints from{1};
  std::vector<int> to(1);
  graph const source = captured_behind_flag([&](cudaStream_t on) {
    load(*taken, on);
    must(cudaMemcpyAsync(to.data(), from.data(), sizeof(int), cudaMemcpyDeviceToHost, on));
  });
  std::atomic<bool> was_launched{false};
  graph_exec rival(source);
  {
    std::jthread const launching([&] { on_two(source).launch(); });
    ASSERT_TRUE(have_started(1));
    std::jthread const beside([&] {
      rival.launch(three);
      was_launched.store(true, std::memory_order_relaxed);  // relaxed: only the value matters
    });
    EXPECT_TRUE(stays_false([&] { return was_launched.load(std::memory_order_relaxed); }));
    EXPECT_EQ(cells.load(1), 1) << "the launches overlap";
    flag.raise();
  }
  EXPECT_TRUE(have_ended(2));
}

TEST_F(StreamLauncher, IsForOneThread) {
  stream_launcher launcher = on_two(captured(*taken));
  launcher.launch();
  std::thread([&] {
    std::string const text = "bound to another thread; call it on the thread that created";
    expect_refused({{"stream_launcher::launch: ", {text}, [&] { launcher.launch(); }},
                    {"stream_launcher::flush: ", {text}, [&] { launcher.flush(); }},
                    {"stream_launcher::release: ", {text}, [&] { return launcher.release(); }}});
  }).join();
  launcher.flush();
  std::thread([ended = std::move(launcher)] {}).join();
  EXPECT_TRUE(is_released(*taken));
}

TEST_F(StreamLauncher, ThatEndsOnAnotherThreadLeaksWhatItsExecHeld) {
  {
    graph const source = behind_flag();
    graph_exec rival(source);
    {
      stream_launcher launcher(std::move(rival), two);
      launcher.launch();
      std::thread([ended = std::move(launcher)] {}).join();
    }
    rival = graph_exec(source);
    EXPECT_THROW(rival.launch(three), cuda_error) << "it may run early";
  }
  expect_leaked("bound to another thread");
}

TEST_F(StreamLauncher, WithoutAnExecIsRefused) {
  graph_exec exec(captured(*taken));
  stream_launcher launcher(std::move(exec), two);
  EXPECT_THROW(stream_launcher(std::move(exec), two), usage_error);  // NOLINT: that is tested
  exec = launcher.release();
  EXPECT_THROW(launcher.launch(), usage_error);
  EXPECT_THROW(launcher.flush(), usage_error);
  EXPECT_THROW(static_cast<void>(launcher.release()), usage_error);
  run(exec);
}

TEST_F(StreamLauncher, OfACapturingStreamRecordsNothing) {
  graph_exec exec(behind_flag());
  {
    test::capture open{two, cudaStreamCaptureModeGlobal};
    EXPECT_THROW(stream_launcher(std::move(exec), two), usage_error);  // NOLINT: that is tested
    EXPECT_EQ(open.end(), cudaSuccess);
  }
  stream_launcher launcher(std::move(exec), two);  // NOLINT(bugprone-use-after-move): not taken
  launcher.launch();
  {
    test::capture open{two, cudaStreamCaptureModeGlobal};
    EXPECT_THROW(launcher.flush(), usage_error);
    EXPECT_THROW(static_cast<void>(launcher.release()), usage_error);
    EXPECT_EQ(open.end(), cudaSuccess);
  }
  {
    test::capture const open{two, cudaStreamCaptureModeThreadLocal};
    EXPECT_THROW(launcher.launch(), cuda_error) << "as a graph_exec";
  }
  exec = launcher.release();
  flag.raise();
  run(exec);
  EXPECT_EQ(cells.load(2), 2);
}

TEST_F(StreamLauncher, ThatEndsWhileItsStreamCapturesLeaksWhatItsExecHeld) {
  std::optional<stream_launcher> launcher(on_two(behind_flag()));
  launcher->launch();
  test::capture open{two, cudaStreamCaptureModeGlobal};
  launcher.reset();
  EXPECT_EQ(open.end(), cudaSuccess);
  expect_leaked("stream_launcher::~stream_launcher: the launcher's stream is being captured");
}

}  // namespace
}  // namespace escrow::test
