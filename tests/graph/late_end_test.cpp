// SPDX-License-Identifier: Apache-2.0
// sharing_options::streams_outlive_group: the end of a launch is recorded when something needs it.
#include <escrow/internal/launch_end.hpp>

#include "park_world.hpp"

namespace escrow::test {
namespace {

class LateEnd : public park_world {
 protected:
  void SetUp() override {
    group.emplace(sharing_options{.label = "batches", .streams_outlive_group = true});
  }
  /// A graph in the group, whose launches wait for the flag.
  [[nodiscard]] graph behind_flag(int value = 1) {
    return captured_behind_flag(
        [&](cudaStream_t on) { use_scratch(scratch(), on, value, mebibyte); });
  }
};

TEST_F(LateEnd, OrdersLaunchesOnTwoStreams) {
  graph const first = behind_flag();
  graph const second = behind_flag(2);
  graph_exec one_exec(first);
  graph_exec other(second);
  one_exec.launch(two);
  expect_ordered([&] { other.launch(three); });
  EXPECT_EQ(group->stats().stream_waits, 1U);
  EXPECT_EQ(group->stats().launches, 2U);
  for (int i = 0; i < 20; ++i) {
    one_exec.launch(i % 3 == 0 ? two : three);
    other.launch(i % 2 == 0 ? two : three);
  }
  sync_all();
}

TEST_F(LateEnd, OrdersHoistedLaunchesAndEagerRuns) {
  graph_exec exec(behind_flag());
  graph const second = captured_use(1);
  hoisted held = hoist(second);
  owned_exec plain = instantiate(second.get());
  exec.launch(two);
  expect_ordered(
      [&] {
        held.launch(three, [&] { must(cudaGraphLaunch(plain, three)); });
        group->run(one, [&] { use_scratch(scratch(), one, 3); });
      },
      1);
  sync_all();
  held.release();
}

TEST_F(LateEnd, ReleasesWhatAnExecHeldAfterItsLaunch) {
  fate_ptr const fate = make_fate();
  {
    graph_exec exec(captured_behind_flag([&](cudaStream_t on) {
      use_scratch(scratch(), on, 1, mebibyte);
      retire(on, fate);
    }));
    exec.launch(two);
    graph_exec(captured_use(1)).launch(two);
  }
  EXPECT_TRUE(stays_kept(fate));
  flag.raise();
  EXPECT_TRUE(is_released(fate));
  sync_all();
}

TEST_F(LateEnd, WaitsToParkForTheLastLaunch) {
  graph_exec exec(behind_flag());
  exec.launch(two);
  EXPECT_THROW(group->park({.wait_max = std::chrono::milliseconds(20)}), group_busy);
  flag.raise();
  EXPECT_EQ(group->park(), mebibyte * 2);
  EXPECT_EQ(group->unpark(), mebibyte * 2);
  exec.launch(three);
  sync_all();
}

TEST_F(LateEnd, IsRefusedWhereItsStreamCaptures) {
  graph_exec exec(captured_use(1));
  graph_exec other(captured_use(1, 2));
  exec.launch(two);
  sync(two);
  {
    test::capture open{two, cudaStreamCaptureModeThreadLocal};
    expect_refused(
        {{"graph_exec::launch: ",
          {"a launch on a stream that is being captured", "call it after"},
          [&] { other.launch(three); }},
         {"sharing_group::park: ", {"its stream is being captured"}, [&] { group->park(); }}});
    must(open.end());
  }
  other.launch(three);
  exec.launch(two);
  sync_all();
}

TEST_F(LateEnd, IsRecordedByTheNextLaunchAfterTheCaptureOfItsStream) {
  fate_ptr const fate = make_fate();
  std::optional<graph_exec> exec(captured([&](cudaStream_t on) {
    use_scratch(scratch(), on, 1, mebibyte);
    retire(on, fate);
  }));
  exec->launch(two);
  sync(two);
  {
    test::capture open{two, cudaStreamCaptureModeThreadLocal};
    exec.reset();
    EXPECT_TRUE(stays_kept(fate));
    must(open.end());
  }
  EXPECT_TRUE(stays_kept(fate)) << "another thread may not ask the stream";
  graph_exec(captured_use(1)).launch(two);
  EXPECT_TRUE(is_released(fate));
  sync(two);
}

// A stream that is made when the others are gone may have the handle of one of them.
TEST_F(LateEnd, WaitsForTheEndOfAStreamThatIsGone) {
  graph const first = behind_flag();
  graph const second = behind_flag(2);
  for (int i = 0; i < 2; ++i) {
    owned_stream of_exec = make_stream();
    graph_exec exec(i == 0 ? first : second);
    if (i == 0) {
      exec.launch(of_exec);
    } else {
      expect_ordered([&] { exec.launch(of_exec); });
    }
  }
  must(cudaDeviceSynchronize());
}

TEST_F(LateEnd, UpdatesWhileALaunchRuns) {
  graph const second = behind_flag(2);
  graph_exec exec(behind_flag());
  exec.launch(two);
  exec.update(second);
  expect_ordered([&] { exec.launch(three); });
  sync_all();
}

#ifdef ESCROW_TEST_RUNTIME_SIM
TEST_F(LateEnd, RecordsOnlyForAnotherStream) {
  graph_exec exec(captured_use(1));
  graph_exec other(captured_use(1, 2));
  auto const records_of = [&](auto const& launches) {
    auto const before = sim::calls("cudaEventRecord");
    launches();
    return sim::calls("cudaEventRecord") - before;
  };
  auto const launch_both = [&](cudaStream_t on) {
    for (int i = 0; i < 5; ++i) {
      exec.launch(on);
      other.launch(on);
    }
  };
  EXPECT_EQ(records_of([&] { launch_both(two); }), 0U);
  EXPECT_EQ(records_of([&] { launch_both(three); }), 1U) << "for the first on the other stream";
  EXPECT_EQ(records_of([&] { launch_both(cudaStreamPerThread); }), 11U)
      << "each, as what another thread may not name";
  sync_all();
}
#endif

}  // namespace
}  // namespace escrow::test
