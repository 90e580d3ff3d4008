// Sharing groups: graphs that use the same slots, one after another.
#include <array>
#include <escrow/detail/graph_query.hpp>
#include <escrow/nodes.hpp>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "pool_world.hpp"

namespace escrow::test {
namespace {

class SharingGroup : public pool_world {
 protected:
  [[nodiscard]] pool_options in_group(std::size_t slots_max = 8) {
    pool_options result = options(slots_max);
    result.group = group;
    return result;
  }
  [[nodiscard]] pool_options in_filled_group() {
    pool_options result = in_group();
    result.group = filled;
    return result;
  }
  [[nodiscard]] graph captured_use_of(block_pool& of, int value = 1) {
    return captured([&](cudaStream_t on) { use(of, on, value); });
  }
  // A graph that uses so much scratch after another.
  [[nodiscard]] graph captured_claims(scratch_pool& of, std::vector<std::size_t> const& bytes) {
    return captured([&](cudaStream_t on) {
      for (std::size_t const each : bytes) of.claim(on, each).release();
    });
  }
  // The same, all at a time.
  [[nodiscard]] graph captured_claims_together(scratch_pool& of,
                                               std::vector<std::size_t> const& bytes) {
    return captured([&](cudaStream_t on) {
      std::vector<lease<device_block>> held;
      for (std::size_t const each : bytes) held.push_back(of.claim(on, each));
    });
  }
  // One launch is in flight, held back by the flag; what `two` has behind it does not run yet.
  void expect_behind_flag(cudaStream_t stream) {
    ASSERT_TRUE(have_started(1));
    EXPECT_TRUE(stays_false([&] { return cells.load(1) > 1 || is_idle(stream); }))
        << "the launches overlap";
    flag.raise();
    sync_all();
  }

  void TearDown() override {
    pool.reset();
    world::TearDown();
  }

  sharing_group group{{.label = "batches"}};
  sharing_group filled{{.fill = 0xAB}};
  std::optional<block_pool> pool{make_pool(in_group())};
};

// What graphs share.

TEST_F(SharingGroup, LetsGraphsUseOneSlot) {
  graph const first = captured_use_of(*pool, 1);
  graph const second = captured_use_of(*pool, 2);
  graph const third = captured_use_of(*pool, 3);
  EXPECT_EQ(made(), 1);
  EXPECT_EQ(pool->stats().in_graphs, 1U);
  EXPECT_EQ(group.stats().slots, 1U);
  graph_exec execs[]{graph_exec(first), graph_exec(second), graph_exec(third)};
  for (int i = 0; i < 30; ++i) execs[i % 3].launch(i % 2 == 0 ? two : three);
  sync_all();
}

TEST_F(SharingGroup, KeepsASlotUntilItsLastGraphIsDestroyed) {
  pool.emplace(make_pool(in_group(1)));
  std::optional<graph> first(captured_use_of(*pool));
  std::optional<graph_exec> second(captured_use_of(*pool));
  first.reset();
  EXPECT_TRUE(stays_kept(*pool));
  std::optional<graph> third(captured_use_of(*pool));
  second.reset();
  EXPECT_TRUE(stays_kept(*pool));
  third.reset();
  EXPECT_TRUE(is_released(*pool));
}

TEST_F(SharingGroup, GivesNoSlotOfAGraphToEagerClaimsOrAnotherGroup) {
  graph const first = captured_use_of(*pool);
  use(*pool, two);
  EXPECT_EQ(made(), 2);
  sync(two);
  pool_options other = in_group();
  other.group = sharing_group();
  block_pool of_other = make_pool(other);
  graph const second = captured_use_of(of_other);
  EXPECT_EQ(made(), 3);
}

TEST_F(SharingGroup, SharesASlotOnlyAfterItsReleaseInTheCapture) {
  std::optional<block_lease> output;
  graph const first = captured([&](cudaStream_t on) { output = pool->claim(on); });
  graph const second = captured_use_of(*pool);
  EXPECT_EQ(made(), 2) << "the slot is leased";
  output->release();
  graph const third = captured_use_of(*pool);
  EXPECT_EQ(made(), 2);
  EXPECT_EQ(first.held().slots, 1U);
  // Each with a slot of its own: eager work on the first may still run.
  graph const both = captured([&](cudaStream_t on) {
    block_lease const one_more = pool->claim(on);
    use(*pool, on);
  });
  EXPECT_EQ(made(), 3);
}

TEST_F(SharingGroup, OrdersUsesInsideOneGraphByItsEdges) {
  graph const large = captured([&](cudaStream_t on) {
    block_lease const held = pool->claim(on);
    use(*pool, on);
  });
  EXPECT_EQ(made(), 2);
  graph const branches = captured([&](cudaStream_t on) {
    order(on, two);
    use(*pool, on, 1);
    use(*pool, two, 2);  // not after the first
    order(two, on);
    use(*pool, on, 3);
    use(*pool, on, 4);
  });
  EXPECT_EQ(made(), 2);
  EXPECT_EQ(branches.held().slots, 2U);
  expect_right_results(branches.get());
}

TEST_F(SharingGroup, ACaptureIntoACloneDoesNotGetWhatTheCloneUses) {
  graph const source = captured_use_of(*pool);
  graph const copy = source.clone();
  capture_into(copy.get(), [&](cudaStream_t on) { use(*pool, on); });
  EXPECT_EQ(made(), 2) << "both parts of the clone may run concurrently";
}

TEST_F(SharingGroup, ACaptureIntoAHoistedCloneDoesNotGetWhatTheCloneUses) {
  graph const source = captured_use_of(*pool);
  graph const copy = source.clone();
  hoisted held = hoist(copy);
  capture_into(copy.get(), [&](cudaStream_t on) { use(*pool, on); });
  EXPECT_EQ(made(), 2) << "both parts of the clone may run concurrently";
  held.release();
}

TEST_F(SharingGroup, DoesNotShareWhatANodeBuiltByHandHolds) {
  std::optional<slot_share> share;
  graph const first = captured([&](cudaStream_t on) {
    block_lease held = pool->claim(on);
    share.emplace(held.share_with_node());
  });
  graph const second = captured_use_of(*pool);
  EXPECT_EQ(made(), 2) << "launches of a graph with that node are not ordered with the group's";
}

// Scratch.

TEST_F(SharingGroup, ClaimsTheSmallestBlockThatIsLargeEnough) {
  scratch_pool scratch(in_group());
  graph const large = captured_claims_together(scratch, {1 << 20, 64 << 10, 4 << 10});
  std::size_t const bytes = scratch.bytes();
  graph const medium = captured_claims_together(scratch, {60 << 10, 1 << 10, 700 << 10});
  EXPECT_EQ(scratch.bytes(), bytes);
  EXPECT_EQ(medium.held().bytes, bytes);
  graph const small = captured_claims(scratch, {3 << 10, 2 << 10});
  EXPECT_EQ(small.held().bytes, scratch_pool::block_bytes(4 << 10));
  EXPECT_EQ(group.stats().bytes, bytes);
}

TEST_F(SharingGroup, NeedsWhatItsLargestGraphNeeds) {
  scratch_pool scratch(in_group());
  std::vector<graph> graphs;
  for (std::size_t bytes = 64 << 10; bytes > 512; bytes -= 512) {
    graphs.push_back(captured_claims(scratch, {bytes, bytes / 2}));
  }
  EXPECT_EQ(scratch.bytes(), scratch_pool::block_bytes(64 << 10));
}

TEST_F(SharingGroup, AGraphAddsOnlyWhatTheOthersLack) {
  scratch_pool scratch(in_group());
  graph const small = captured_claims(scratch, {4 << 10});
  graph const large = captured_claims_together(scratch, {1 << 20, 1 << 10});
  EXPECT_EQ(scratch.bytes(),
            scratch_pool::block_bytes(4 << 10) + scratch_pool::block_bytes(1 << 20));
}

TEST_F(SharingGroup, TakesNoFreeBlockThatIsTooLarge) {
  scratch_pool scratch(in_group());
  scratch.claim(two, 1 << 20).release();
  sync(two);
  graph const small = captured_claims(scratch, {1 << 10});
  EXPECT_EQ(small.held().bytes, scratch_pool::block_bytes(1 << 10))
      << "the next eager claim must grow";
}

TEST_F(SharingGroup, FillsScratchBeforeEachLaunchIfAsked) {
  scratch_pool scratch(in_filled_group());
  pinned_ints seen{1};
  graph const source = captured([&](cudaStream_t on) {
    auto const held = scratch.claim<int>(on, 64);
    must(launch_copy(on, seen.data(), held.data(), 1));
    must(launch_fill(on, held.data(), 64, 7));
  });
  graph_exec exec(source);
  for (int i = 0; i < 2; ++i) {
    exec.launch(two);
    sync(two);
    EXPECT_EQ(static_cast<unsigned>(seen.load()), 0xABABABABU) << "what the last launch left";
  }
}

TEST_F(SharingGroup, FillsNothingOfAPoolWithoutTheGroup) {
  scratch_pool scratch(in_filled_group());
  scratch_pool other(options(8));
  pinned_ints seen{1};
  graph const source = captured([&](cudaStream_t on) {
    auto const held = scratch.claim<int>(on, 64);
    auto const kept = other.claim<int>(on, 64);
    must(launch_copy(on, seen.data(), kept.data(), 1));
    must(launch_fill(on, kept.data(), 64, 7));
  });
  EXPECT_EQ(filled.stats().slots, 1U);
  graph_exec exec(source);
  for (int i = 0; i < 2; ++i) exec.launch(two);
  sync(two);
  EXPECT_EQ(seen.load(), 7) << "what the last launch left";
}

TEST_F(SharingGroup, FillsAfterTheLastLaunchOfTheSameExec) {
  scratch_pool scratch(in_filled_group());
  graph_exec exec(captured([&](cudaStream_t on) {
    auto const held = scratch.claim<int>(on, 64);
    must(launch_fill(on, held.data(), 64, 7));
    must(launch_add(on, started(), 1));
    hold_up(on);
    must(launch_check(on, held.data(), 64, 7, mismatches.data()));
  }));
  exec.launch(two);
  ASSERT_TRUE(have_started(1));
  exec.launch(three);
  EXPECT_TRUE(stays_false([&] { return is_idle(three); }));
  flag.raise();
  sync_all();
}

#ifdef ESCROW_TEST_RUNTIME_SIM

TEST_F(SharingGroup, LaunchesWaitForWhatAFailedOneHasFilled) {
  scratch_pool scratch(in_filled_group());
  auto const enqueue = [&](cudaStream_t on) {
    auto const held = scratch.claim<int>(on, 64);
    must(launch_add(on, started(), 1));
    must(launch_fill(on, held.data(), 64, 7));
  };
  graph_exec first(captured(enqueue));
  graph_exec second(captured(enqueue));
  hold_up(two);
  sim::fail_call_here("cudaGraphLaunch", cudaErrorUnknown);
  EXPECT_THROW(first.launch(two), cuda_error);
  static_cast<void>(cudaGetLastError());
  second.launch(three);
  EXPECT_TRUE(stays_false([&] { return cells.load(1) != 0; }));
  flag.raise();
  sync_all();
}

TEST_F(SharingGroup, FillsNothingInACapture) {
  scratch_pool scratch(in_filled_group());
  graph_exec exec(captured_claims(scratch, {256}));
  test::capture open{three, cudaStreamCaptureModeThreadLocal};
  EXPECT_THROW(exec.launch(three), usage_error);
  must(open.end());
  EXPECT_EQ(node_count(open.graph()), 0U);
  exec.launch(two);
  sync(two);
}

#endif

// The order of launches.

// The order of launches.

TEST_F(SharingGroup, OrdersLaunchesOfItsGraphs) {
  graph_exec first(captured_behind_flag([&](cudaStream_t on) { use(*pool, on); }));
  graph_exec second(captured_use_of(*pool));
  first.launch(three);
  second.launch(two);
  expect_behind_flag(two);
}

TEST_F(SharingGroup, WaitsOnlyForAnotherStream) {
  graph_exec first(captured_use_of(*pool));
  graph_exec second(captured_use_of(*pool));
  for (int i = 0; i < 10; ++i) (i % 2 == 0 ? first : second).launch(two);
  EXPECT_EQ(group.stats().stream_waits, 0U);
  for (int i = 0; i < 10; ++i) (i % 2 == 0 ? first : second).launch(i % 2 == 0 ? two : three);
  EXPECT_EQ(group.stats().stream_waits, 9U);
  EXPECT_EQ(group.stats().launches, 20U);
}

TEST_F(SharingGroup, RefusesChildGraphsOnTwoBranches) {
  graph const first = captured_use_of(*pool);
  graph const second = captured_use_of(*pool);
  graph parallel;
  static_cast<void>(build(parallel).add(child_node(first)));
  static_cast<void>(build(parallel).add(child_node(second)));
  expect_error<usage_error>([&] { graph_exec const refused(parallel); },
                            {"graph_exec::graph_exec", "batches", "graph::add_child"});
  expect_error<usage_error>([&] { static_cast<void>(hoist(parallel)); }, {"hoist", "batches"});
  graph serial;
  serial.add_child(first);
  serial.add_child(second);
  run(serial);
}

TEST_F(SharingGroup, RefusesAChildGraphBesideWorkOfItsOwn) {
  graph const child = captured_use_of(*pool);
  graph parent = captured_use_of(*pool);
  static_cast<void>(build(parent).add(child_node(child)));
  EXPECT_THROW(graph_exec const refused(parent), usage_error);
  graph_exec exec(captured_use_of(*pool));
  EXPECT_THROW(exec.update(parent), usage_error);
  graph serial = captured_use_of(*pool);
  serial.add_child(child);
  run(serial);
}

TEST_F(SharingGroup, RefusesWorkBesideAChildGraphThatWasHoisted) {
  graph parent;
  parent.add_child(captured_use_of(*pool));
  graph const other = captured_use_of(*pool);
  hoisted held = hoist(parent);
  capture_into(parent.get(), [&](cudaStream_t on) { use(*pool, on); });
  EXPECT_THROW(graph_exec const refused(parent), usage_error);
  EXPECT_THROW(static_cast<void>(hoist(parent)), usage_error);
  held.release();
}

TEST_F(SharingGroup, AnEdgeThatWaitsForNoEndOrdersNoChildGraph) {
  graph const child = captured_use_of(*pool);
  auto const add_behind = [&](cudaGraphEdgeData const& edge) {
    graph parent = captured_use_of(*pool);
    std::vector<cudaGraphNode_t> const nodes = nodes_of(parent.get());
    cudaGraphNode_t const last = add_kernel(parent.get(), tiny_call());
    must(cudaGraphAddDependencies(parent.get(), &nodes.back(), &last, &edge, 1));
    static_cast<void>(child.embed_in("test", parent.get(), {&last, 1}));
    return parent;
  };
  // The kernel in between may end before the parent's own use of the slot does.
  EXPECT_THROW(graph_exec const refused(add_behind(launch_completion_edge)), usage_error);
  EXPECT_THROW(graph_exec const refused(add_behind(block_start_edge)), usage_error);
  run(add_behind(trigger_edge));
  run(add_behind(full_edge));
}

TEST_F(SharingGroup, RefusesABodyBesideOtherWork) {
  graph whole;
  cudaGraph_t const body = add_conditional(whole.get());
  capture_into(body, [&](cudaStream_t on) { use(*pool, on); });
  { graph_exec const alone(whole, {.bodies = {body}}); }
  whole.add_child(captured_use_of(*pool));
  EXPECT_THROW(graph_exec const refused(whole, {.bodies = {body}}), usage_error);
}

TEST_F(SharingGroup, IsOfOneDevice) {
  if (!has_two_devices()) GTEST_SKIP() << "needs two devices";
  pool_options there = in_group();
  there.device = 1;
  expect_error<usage_error>([&] { static_cast<void>(make_pool(there)); },
                            {"pool_options::group", "blocks", "batches", "device 1", "device 0"});
}

TEST_F(SharingGroup, HoldsForCapturesAndLaunchesOfSeveralThreads) {
  std::array<std::jthread, 4> threads;
  for (std::jthread& each : threads) {
    each = std::jthread([this] {
      owned_stream const stream = make_stream();
      for (int i = 0; i < 20; ++i) {
        graph_exec exec(escrow::capture(stream_ref(stream), [&](stream_ref on) {
          use(*pool, on.get(), 1);
          use(*pool, on.get(), 2);
        }));
        for (int k = 0; k < 10; ++k) exec.launch(stream);
      }
      sync(stream);
    });
  }
  for (std::jthread& each : threads) each.join();
  EXPECT_LE(made(), 4);
}

// Launches by the caller's own code.

class GroupTurn : public SharingGroup {
 protected:
  // A graph of the group with a plain exec.
  struct plain {
    explicit plain(graph&& of) : held(hoist(of)), exec(instantiate(of.get())) {}
    hoisted held;
    owned_exec exec;
  };
  static void launch_in_turn(plain& each, cudaStream_t stream) {
    each.held.enter(stream);
    must(cudaGraphLaunch(each.exec, stream));
    each.held.leave(stream);
  }
  static void end(plain& each) {
    each.exec.reset();
    each.held.release();
  }
};

TEST_F(GroupTurn, IsOrderedWithTheLaunchesOfExecs) {
  plain first(captured_behind_flag([&](cudaStream_t on) { use(*pool, on); }));
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

TEST_F(GroupTurn, MakesOthersWaitOnTheHostUntilItsEnd) {
  plain first(captured_use_of(*pool));
  graph_exec second(captured_use_of(*pool));
  plain third(captured_use_of(*pool));
  first.held.enter(two);
  std::atomic<int> launched{0};
  std::jthread exec_thread([&] {
    second.launch(three);
    ++launched;
  });
  std::jthread plain_thread([&] {
    launch_in_turn(third, one);
    ++launched;
  });
  EXPECT_TRUE(stays_false([&] { return launched != 0; }));
  must(cudaGraphLaunch(first.exec, two));
  first.held.leave(two);
  exec_thread.join();
  plain_thread.join();
  sync_all();
  end(first);
  end(third);
}

TEST_F(GroupTurn, OrdersTwoExecsOfOneGraph) {
  graph source = captured_behind_flag([&](cudaStream_t on) { use(*pool, on); });
  hoisted held = hoist(source);
  owned_exec first = instantiate(source.get());
  owned_exec second = instantiate(source.get());
  held.enter(three);
  must(cudaGraphLaunch(first, three));
  held.leave(three);
  held.enter(two);
  must(cudaGraphLaunch(second, two));
  held.leave(two);
  expect_behind_flag(two);
  first.reset();
  second.reset();
  held.release();
}

TEST_F(GroupTurn, MayWaitWithoutALimit) {
  plain first(captured_use_of(*pool));
  plain second(captured_use_of(*pool));
  first.held.enter(two);
  std::atomic<bool> has_ended{false};
  std::jthread other([&] {
    second.held.enter(three, std::chrono::nanoseconds::max());
    second.held.leave(three);
    has_ended = true;
  });
  EXPECT_TRUE(stays_false([&] { return has_ended.load(); }));
  first.held.leave(two);
  other.join();
  end(first);
  end(second);
}

TEST_F(GroupTurn, RefusesAnotherThreadAfterItsWait) {
  plain first(captured_use_of(*pool));
  plain second(captured_use_of(*pool));
  first.held.enter(two);
  std::jthread([&] {
    expect_error<group_busy>([&] { second.held.enter(three, std::chrono::milliseconds(5)); },
                             {"hoisted::enter", "another thread", "batches"});
  }).join();
  first.held.leave(two);
  second.held.enter(three, std::chrono::nanoseconds(0));
  second.held.leave(three);
  end(first);
  end(second);
}

TEST_F(GroupTurn, RefusesItsOwnThreadAtOnce) {
  plain first(captured_use_of(*pool));
  plain second(captured_use_of(*pool));
  graph_exec third(captured_use_of(*pool));
  first.held.enter(two);
  expect_error<group_busy>([&] { second.held.enter(two); }, {"this thread", "leave() first"});
  expect_error<group_busy>([&] { third.launch(two); }, {"graph_exec::launch", "this thread"});
  first.held.leave(two);
  third.launch(two);
  end(first);
  end(second);
}

TEST_F(GroupTurn, RefusesCallsInTheWrongOrder) {
  plain one_graph(captured_use_of(*pool));
  hoisted& held = one_graph.held;
  EXPECT_THROW(held.leave(two), usage_error);
  held.enter(two);
  EXPECT_THROW(held.enter(two), usage_error);
  EXPECT_THROW(held.release(), usage_error);
  EXPECT_THROW(held.release_after(two), usage_error);
  held.leave(two);
  {
    test::capture open{three, cudaStreamCaptureModeThreadLocal};
    EXPECT_THROW(held.enter(three), usage_error);
    EXPECT_EQ(open.end(), cudaSuccess);
  }
  end(one_graph);
  EXPECT_THROW(held.enter(two), usage_error);
}

TEST_F(GroupTurn, ThatIsForgottenEndsWithItsHandle) {
  errors_expected = true;
  graph_exec second(captured_use_of(*pool));
  {
    plain first(captured_behind_flag([&](cudaStream_t on) { use(*pool, on); }));
    first.held.release_at_end(two);
    first.held.enter(two);
    must(cudaGraphLaunch(first.exec, two));
  }
  EXPECT_NE(errors->all().find("between enter() and leave()"), std::string::npos);
  second.launch(three);
  expect_behind_flag(three);
}

#ifdef ESCROW_TEST_RUNTIME_SIM
TEST_F(GroupTurn, WhoseEndIsNotKnownBlocksOthersUntilItsRelease) {
  graph_exec other(captured_use_of(*pool));
  for (bool const is_after_stream : {false, true}) {
    plain one_graph(captured_use_of(*pool));
    one_graph.held.enter(two);
    must(cudaGraphLaunch(one_graph.exec, two));
    sim::fail_call_here("cudaEventRecord", cudaErrorUnknown, 1, 100);
    sim::fail_call_here("cudaStreamSynchronize", cudaErrorUnknown, 1, 100);
    EXPECT_THROW(one_graph.held.leave(two), cuda_error);
    sim::clear_faults();
    static_cast<void>(cudaGetLastError());
    EXPECT_THROW(other.launch(three), cuda_error);
    if (is_after_stream) {
      one_graph.held.release_after(stream_ref(two));
    } else {
      sync(two);
      end(one_graph);
    }
    other.launch(three);
    sync_all();
  }
}
#endif

TEST_F(GroupTurn, StatisticsNameGraphsThatNothingOrders) {
  graph plain_source = captured_use_of(*pool);
  graph const unused = captured_use_of(*pool);
  graph_exec const ordered(captured_use_of(*pool));
  EXPECT_EQ(group.stats().unordered.size(), 2U);
  EXPECT_EQ(group.stats().unordered.front(), plain_source.id());
  hoisted held = hoist(plain_source);
  held.enter(two);
  held.leave(two);
  EXPECT_EQ(group.stats().unordered.size(), 1U);
  EXPECT_NE(group.describe().find("\"unordered\": [" + std::to_string(unused.id()) + "]}"),
            std::string::npos)
      << group.describe();
  held.release();
}

TEST_F(GroupTurn, StatisticsNameAGraphOnceAsLongAsNothingOrdersIt) {
  graph built;
  capture_into(built.get(), [&](cudaStream_t on) { use(*pool, on); });
  std::vector<std::uint64_t> const its_id{graph_id_of(built.get()).value_or(0)};
  EXPECT_EQ(group.stats().unordered, its_id) << "a graph created by Escrow";
  static_cast<void>(graph_exec(captured_use_of(*pool)));
  { graph const copied = built.clone(); }  // the next claim does not join the first
  capture_into(built.get(), [&](cudaStream_t on) { use(*pool, on); });
  EXPECT_EQ(group.stats().unordered, its_id) << "with two sets";
#ifdef ESCROW_TEST_RUNTIME_SIM
  sim::fail_call_here("cudaGraphInstantiate", cudaErrorUnknown);
  EXPECT_THROW(graph_exec const refused(built), cuda_error);
  static_cast<void>(cudaGetLastError());
  EXPECT_EQ(group.stats().unordered, its_id) << "no exec was created";
#endif
  hoisted held = hoist(built);
  EXPECT_EQ(group.stats().unordered, its_id) << "enter() was not called";
  held.enter(two);
  held.leave(two);
  EXPECT_TRUE(group.stats().unordered.empty());
  held.release();
}

}  // namespace
}  // namespace escrow::test
