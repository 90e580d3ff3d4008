// Sharing groups: graphs that use the same slots, one after another.
#include <array>
#include <escrow/internal/graph_query.hpp>
#include <escrow/nodes.hpp>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "sharing_world.hpp"

namespace escrow::test {
namespace {

class SharingGroup : public sharing_world {};

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

TEST_F(SharingGroup, KeepsNoSlotForOneGraphThatAnotherHoldsAlready) {
  graph const first = captured_use_of(*pool);
  std::optional<block_lease> output;
  graph const second = captured([&](cudaStream_t on) { output = pool->claim(on); });
  EXPECT_EQ(made(), 1) << "why results need a pool without the group";
  output->release();
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

TEST_F(SharingGroup, LeavesLargerIdleBlocksToEagerClaims) {
  scratch_pool scratch(in_group());
  for (std::size_t const bytes : {4 << 10, 1 << 20}) scratch.claim(two, bytes).release();
  sync(two);
  graph const small = captured_claims(scratch, {3 << 10});
  EXPECT_EQ(small.held().bytes, scratch_pool::block_bytes(3 << 10));
  graph const equal = captured_claims_together(scratch, {4 << 10, 1 << 20});
  EXPECT_EQ(scratch.bytes(), small.held().bytes + equal.held().bytes) << "of idle ones, those";
}

TEST_F(SharingGroup, AGraphAddsOnlyWhatTheOthersLack) {
  scratch_pool scratch(in_group());
  graph const small = captured_claims(scratch, {4 << 10});
  graph const large = captured_claims_together(scratch, {1 << 20, 1 << 10});
  EXPECT_EQ(scratch.bytes(),
            scratch_pool::block_bytes(4 << 10) + scratch_pool::block_bytes(1 << 20));
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

}  // namespace
}  // namespace escrow::test
