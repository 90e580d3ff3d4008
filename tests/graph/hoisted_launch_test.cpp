// SPDX-License-Identifier: Apache-2.0
// Launches of a sharing group's graphs by the caller's own code, in hoisted::launch(): their order,
// their turns, their ends, and what is released after them.
#include <escrow/graph.hpp>

#include "pool_world.hpp"

namespace escrow::test {
namespace {

class GroupTurn : public sharing_world {
 protected:
  // A graph with a plain exec.
  struct plain {
    explicit plain(graph&& of)
        : source(std::move(of)), held(hoist(source)), exec(instantiate(source.get())) {}
    graph source;
    hoisted held;
    owned_exec exec;
  };
  static void launch_in_turn(plain& each, cudaStream_t stream) {
    each.held.launch(stream, [&] { return cudaGraphLaunch(each.exec, stream); });
  }
  static void end(plain& each) {
    each.exec.reset();
    each.held.release();
  }
  graph used_behind_flag() {
    return captured_behind_flag([&](cudaStream_t on) { use(*pool, on); });
  }
#ifdef ESCROW_TEST_RUNTIME_SIM
  /// The same, but CUDA can neither record its end nor wait for it.
  static void lose(plain& each, cudaStream_t stream) {
    sim::fail_call_here("cudaEventRecord", cudaErrorUnknown, 1, 100);
    sim::fail_call_here("cudaStreamSynchronize", cudaErrorUnknown, 1, 100);
    expect_error<cuda_error>([&] { launch_in_turn(each, stream); },
                             {"hoisted::launch", "cudaEventRecord"});
    sim::clear_faults();
    static_cast<void>(cudaGetLastError());
  }
#endif
};

TEST_F(GroupTurn, IsOrderedWithTheLaunchesOfExecs) {
  plain first(used_behind_flag());
  graph_exec second(captured_use_of(*pool));
  plain third(captured_use_of(*pool));
  launch_in_turn(first, three);
  second.launch(one);
  launch_in_turn(third, two);
  expect_behind_flag(two);
  EXPECT_EQ(group.stats().stream_waits, 2U);
  EXPECT_EQ(group.stats().launches, 3U);
  end(first);
  end(third);
}

TEST_F(GroupTurn, OrdersTwoExecsOfOneGraph) {
  plain first(used_behind_flag());
  owned_exec const second = instantiate(first.source.get());
  launch_in_turn(first, three);
  first.held.launch(two, [&] { must(cudaGraphLaunch(second, two)); });
  expect_behind_flag(two);
  for (int i = 0; i < 3; ++i) launch_in_turn(first, two);
  EXPECT_EQ(group.stats().stream_waits, 1U);
  end(first);
}

TEST_F(GroupTurn, MakesOthersWaitOnTheHostUntilItsEnd) {
  plain first(captured_use_of(*pool));
  graph_exec second(captured_use_of(*pool));
  plain third(captured_use_of(*pool));
  plain fourth(captured_use_of(*pool));
  std::atomic<int> begun{0};
  std::vector<std::jthread> threads;
  first.held.launch(two, [&] {
    for (auto const& begin : std::vector<std::function<void()>>{
             [&] { second.launch(three); }, [&] { launch_in_turn(third, one); },
             [&] {
               fourth.held.launch(
                   asking, [] {}, std::chrono::nanoseconds::max());
             }}) {
      threads.emplace_back([&begun, begin] {
        begin();
        ++begun;
      });
    }
    EXPECT_TRUE(stays_false([&] { return begun != 0; }));
    must(cudaGraphLaunch(first.exec, two));
  });
  threads.clear();
  EXPECT_EQ(begun, 3);
  sync_all();
  for (plain* const each : {&first, &third, &fourth}) end(*each);
}

TEST_F(GroupTurn, RefusesAnotherThreadAfterItsWaitAndItsOwnAtOnce) {
  plain first(captured_use_of(*pool));
  plain second(captured_use_of(*pool));
  graph_exec third(captured_use_of(*pool));
  stream_launcher fourth(graph_exec(captured_use_of(*pool)), two);
  std::string const own = "this thread is inside hoisted::launch() of a graph of group \"batches\"";
  first.held.launch(two, [&] {
    std::jthread([&] {
      expect_error<group_busy>(
          [&] {
            second.held.launch(
                three, [] { FAIL(); }, std::chrono::milliseconds(5));
          },
          {"hoisted::launch", "another thread", "batches"});
    }).join();
    expect_refused({{"hoisted::launch: ", {own}, [&] { launch_in_turn(second, two); }},
                    {"hoisted::launch: ", {"its own"}, [&] { launch_in_turn(first, two); }},
                    {"hoisted::enter: ", {own}, [&] { second.held.enter(two); }},
                    {"graph_exec::launch: ", {own}, [&] { third.launch(two); }},
                    {"stream_launcher::launch: ", {own}, [&] { fourth.launch(); }}});
    must(cudaGraphLaunch(first.exec, two));
  });
  EXPECT_EQ(group.stats().launches, 1U);
  second.held.launch(
      three, [] {}, std::chrono::nanoseconds(0));
  third.launch(two);
  fourth.launch();
  end(first);
  end(second);
}

TEST_F(GroupTurn, RecordsItsEndAlsoIfItsCallThrowsOrFails) {
  plain first(used_behind_flag());
  graph_exec second(captured_use_of(*pool));
  auto const throws = [&] {
    must(cudaGraphLaunch(first.exec, two));
    throw std::runtime_error("the caller's");
  };
  expect_error<std::runtime_error>([&] { first.held.launch(two, throws); }, {"the caller's"});
  expect_error<cuda_error>([&] { first.held.launch(two, [] { return cudaErrorInvalidValue; }); },
                           {"hoisted::launch", "cudaErrorInvalidValue"});
  second.launch(three);
  expect_behind_flag(three);
  end(first);
}

TEST_F(GroupTurn, RefusesCallsInTheWrongOrder) {
  plain one_graph(captured_use_of(*pool));
  hoisted& held = one_graph.held;
  EXPECT_THROW(held.leave(), usage_error);
  held.launch(two, [&] {
    EXPECT_THROW(held.release(), usage_error);
    EXPECT_THROW(held.release_after(two), usage_error);
    EXPECT_THROW(held.release_after(event_ref(event().get())), usage_error);
  });
  {
    test::capture open{three, cudaStreamCaptureModeThreadLocal};
    EXPECT_THROW(held.launch(three, [] { FAIL(); }), usage_error);
    EXPECT_EQ(open.end(), cudaSuccess);
  }
  end(one_graph);
  EXPECT_THROW(held.launch(two, [] { FAIL(); }), usage_error);
}

TEST_F(GroupTurn, WhoseStreamCapturesAtItsEndKeepsOtherStreamsFromLaunching) {
  plain first(captured_use_of(*pool));
  graph_exec second(captured_use_of(*pool));
  std::optional<test::capture> open;
  auto const begin = [&] {
    must(cudaGraphLaunch(first.exec, two));
    open.emplace(two, cudaStreamCaptureModeThreadLocal);
  };
  expect_error<usage_error>([&] { first.held.launch(two, begin); },
                            {"hoisted::launch", "captured at its end"});
  EXPECT_EQ(open->end(), cudaSuccess);
  expect_error<cuda_error>([&] { second.launch(three); },
                           {"not known", "launch on the stream of that one"});
  launch_in_turn(first, two);
  second.launch(three);
  end(first);
}

TEST_F(GroupTurn, IsLeftByAPairOnlyWhenItsStreamNoLongerCaptures) {
  plain first(captured_use_of(*pool));
  graph_exec second(captured_use_of(*pool));
  first.held.enter(two);
  must(cudaGraphLaunch(first.exec, two));
  {
    test::capture open{two, cudaStreamCaptureModeThreadLocal};
    EXPECT_THROW(first.held.leave(), usage_error);
    EXPECT_EQ(open.end(), cudaSuccess);
  }
  EXPECT_THROW(second.launch(three), usage_error) << "it was not left";
  first.held.leave();
  second.launch(three);
  end(first);
}

TEST_F(GroupTurn, EndsWithAHandleThatIsDestroyedInIt) {
  errors_expected = true;
  graph_exec second(captured_use_of(*pool));
  std::optional<plain> first(used_behind_flag());
  first->held.release_at_end(three);
  first->held.launch(two, [&] {
    must(cudaGraphLaunch(first->exec, two));
    first.reset();
  });
  EXPECT_NE(errors->all().find("hoisted_launch_test.cpp"), std::string::npos);
  EXPECT_NE(errors->all().find(" ended inside its own launch()"), std::string::npos);
  second.launch(three);
  expect_behind_flag(three);
}

TEST_F(GroupTurn, MayMoveItsHandle) {
  plain first(captured_use_of(*pool));
  std::optional<hoisted> moved;
  first.held.launch(two, [&] {
    must(cudaGraphLaunch(first.exec, two));
    moved.emplace(std::move(first.held));
  });
  graph_exec(captured_use_of(*pool)).launch(three);
  moved->release();
}

/// A way to release what was hoisted, which says nothing of the launches on other streams.
struct release_way {
  char const* name;
  void (*release)(hoisted held, cudaStream_t quiet);
};

class GroupTurnsOnTwoStreams : public GroupTurn, public testing::WithParamInterface<release_way> {};

constexpr release_way release_ways[] = {
    {"AtItsEnd",
     [](hoisted held, cudaStream_t quiet) {
       try {
         held.release_at_end(quiet);
         hoisted const ends = std::move(held);
         throw std::runtime_error("the caller's");
       } catch (std::runtime_error const&) {
       }
     }},
    {"AfterAStream",
     [](hoisted held, cudaStream_t quiet) { held.release_after(stream_ref(quiet)); }},
    {"AfterAnEvent",
     [](hoisted held, cudaStream_t quiet) {
       owned_event const recorded = make_event();
       must(cudaEventRecord(recorded, quiet));
       held.release_after(event_ref(recorded.get()));
     }},
    {"Now", [](hoisted held, cudaStream_t) { held.release(); }}};

INSTANTIATE_TEST_SUITE_P(Released, GroupTurnsOnTwoStreams, testing::ValuesIn(release_ways),
                         [](auto const& each) { return std::string(each.param.name); });

TEST_P(GroupTurnsOnTwoStreams, KeepTheSlotUntilTheLastIsDone) {
  pool.emplace(make_pool(in_group(1)));
  plain one_graph(used_behind_flag());
  launch_in_turn(one_graph, two);
  GetParam().release(std::move(one_graph.held), three);
  EXPECT_TRUE(stays_kept(*pool)) << "the launch on another stream uses it";
  flag.raise();
  EXPECT_TRUE(is_released(*pool));
}

// Nothing that is written orders these launches: the last one does not come after the first.
TEST_P(GroupTurnsOnTwoStreams, KeepASharedOwnerUntilBothAreDone) {
  fate_ptr const fate = make_fate();
  auto owner = std::make_shared<probe>(fate);
  plain blocked(captured_behind_flag([&](cudaStream_t on) { worker->retire(on, owner); }));
  owner.reset();
  owned_exec const quick = instantiate(captured_without_cargo().get());
  launch_in_turn(blocked, two);
  blocked.held.launch(one, [&] { must(cudaGraphLaunch(quick, one)); });
  sync(one);
  GetParam().release(std::move(blocked.held), three);
  EXPECT_TRUE(stays_kept(fate)) << "the launch on the first stream uses it";
  flag.raise();
  EXPECT_TRUE(is_released(fate));
}

#ifdef ESCROW_TEST_RUNTIME_SIM
TEST_F(GroupTurn, WhoseEndIsNotKnownBlocksOtherStreamsUntilALaunchOnItsOwnOrItsRelease) {
  graph_exec other(captured_use_of(*pool));
  owned_event const launched = make_event();
  for (std::string const way :
       {"its own launch", "another's launch", "release", "release after the stream"}) {
    SCOPED_TRACE(way);
    plain one_graph(captured_use_of(*pool));
    lose(one_graph, two);
    must(cudaEventRecord(launched, two));
    owned_exec const second = instantiate(one_graph.source.get());
    std::string const remedy = "launch on the stream of that one before";
    for (auto const& launch : std::vector<std::function<void()>>{
             [&] { other.launch(three); }, [&] { one_graph.held.launch(three, [] { FAIL(); }); }}) {
      expect_error<cuda_error>(launch, {"not known", remedy});
    }
    std::string const call = "call release() once nothing runs";
    expect_error<cuda_error>([&] { one_graph.held.release_after(three); }, {call});
    expect_error<cuda_error>([&] { one_graph.held.release_after(event_ref(launched)); }, {call});
    if (way == "its own launch") {
      launch_in_turn(one_graph, two);
    } else if (way == "another's launch") {
      other.launch(two);
    } else if (way == "release after the stream") {
      one_graph.held.release_after(stream_ref(two));
    } else {
      sync(two);
      end(one_graph);
    }
    other.launch(three);
    sync_all();
    if (way.find("launch") != std::string::npos) end(one_graph);
  }
}

TEST_F(GroupTurn, WhoseEndIsNotKnownDoesNotBlockItsGroupForGoodAfterItsHandle) {
  errors_expected = true;
  graph_exec other(captured_use_of(*pool));
  {
    plain one_graph(captured_use_of(*pool));
    one_graph.held.release_at_end(three);
    lose(one_graph, two);
  }
  EXPECT_EQ(worker->stats().leaked, 1U) << "a launch may use it";
  EXPECT_THROW(other.launch(three), cuda_error);
  other.launch(two);
  other.launch(three);
  lost = 1;
  owed = 1;
}

TEST_F(GroupTurn, WhoseEndIsNotKnownRefusesAnotherStreamAlsoIfNothingIsWritten) {
  fate_ptr const fate = make_fate();
  plain one_graph(
      captured([&](cudaStream_t on) { worker->retire(on, std::make_shared<probe>(fate)); }));
  lose(one_graph, two);
  EXPECT_THROW(launch_in_turn(one_graph, three), cuda_error);
  launch_in_turn(one_graph, two);
  launch_in_turn(one_graph, three);
  end(one_graph);
  EXPECT_TRUE(is_released(fate));
}

TEST_F(GroupTurn, OfASetWhoseEndIsNotKnownDoesNotKeepItsStreamFromLaunching) {
  exec_set set;
  auto const first = set.add(captured_use_of(*pool));
  auto const second = set.add(captured_use_of(*pool));
  graph_exec other(captured_use_of(*pool));
  sim::fail_call_here("cudaEventRecord", cudaErrorUnknown, 1, 100);
  sim::fail_call_here("cudaStreamSynchronize", cudaErrorUnknown, 1, 100);
  EXPECT_THROW(set.launch(first, two), cuda_error);
  sim::clear_faults();
  static_cast<void>(cudaGetLastError());
  EXPECT_THROW(other.launch(three), cuda_error);
  set.launch(second, two);
  other.launch(three);
  set.launch(first, two);
}

TEST_F(GroupTurn, IsReleasedOnceItsStreamIsDoneIfNothingCanBeRecorded) {
  pool.emplace(make_pool(in_group(1)));
  plain one_graph(captured_use_of(*pool));
  must(cudaGraphLaunch(one_graph.exec, two));
  sim::fail_call_here("cudaEventRecord", cudaErrorUnknown, 1, 100);
  sim::fail_call_here("cudaStreamSynchronize", cudaErrorUnknown, 1, 100);
  EXPECT_THROW(one_graph.held.release_after(two), cuda_error);
  EXPECT_TRUE(stays_kept(*pool)) << "released without knowing that nothing runs";
  sim::clear_faults();
  sim::fail_call_here("cudaEventRecord", cudaErrorUnknown, 1, 100);
  one_graph.held.release_after(two);
  sim::clear_faults();
  EXPECT_EQ(cudaStreamQuery(two), cudaSuccess);
  EXPECT_TRUE(is_released(*pool));
}
#endif

}  // namespace
}  // namespace escrow::test
