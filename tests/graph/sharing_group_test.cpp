// SPDX-License-Identifier: Apache-2.0
// Sharing groups: graphs that use the same slots, one launch after another.
#include <array>
#include <escrow/internal/graph_query.hpp>
#include <escrow/nodes.hpp>

#include "pool_world.hpp"

namespace escrow::test {
namespace {

class SharingGroup : public sharing_world {
 protected:
  // A graph that uses so much scratch, all at a time.
  [[nodiscard]] graph captured_claims(scratch_pool& of, std::vector<std::size_t> const& bytes) {
    return captured([&](cudaStream_t on) {
      std::vector<lease<device_block>> held;
      for (std::size_t const each : bytes) {
        held.push_back(of.claim(on, each));
        EXPECT_GE(held.back()->size(), each);
      }
    });
  }
};

// What graphs share.

TEST_F(SharingGroup, LetsGraphsUseOneSlot) {
  errors_expected = true;  // the output
  graph const first = captured_use_of(*pool, 1);
  graph const second = captured_use_of(*pool, 2);
  graph const third = captured_use_of(*pool, 3);
  std::optional<block_lease> output;
  graph const fourth = captured([&](cudaStream_t on) { output = pool->claim(on); });
  EXPECT_EQ(made(), 1) << "also for results, which need claim_kept or a pool without the group";
  EXPECT_EQ(errors->size(), 1U) << errors->all();
  EXPECT_EQ(pool->stats().in_graphs, 1U);
  EXPECT_EQ(group.stats().slots, 1U);
  output.reset();
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
  errors_expected = true;  // the output
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

TEST_F(SharingGroup, ACaptureIntoACloneDoesNotGetWhatTheCloneUsesAlsoIfItWasHoisted) {
  for (bool const is_hoisted : {false, true}) {
    graph const source = captured_use_of(pool.emplace(make_pool(in_group())));
    graph const copy = source.clone();
    std::optional<hoisted> held;
    if (is_hoisted) held.emplace(hoist(copy));
    int const before = made();
    capture_into(copy.get(), [&](cudaStream_t on) { use(*pool, on); });
    EXPECT_EQ(made(), before + 1) << "both parts of the clone may run concurrently";
    if (held) held->release();
  }
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

TEST_F(SharingGroup, HasNoPartInWhatTheSameCaptureClaimsOfOtherPools) {
  block_pool other = make_pool(options(8));
  graph const source = captured([&](cudaStream_t on) {
    use(*pool, on);
    use(other, on);
  });
  EXPECT_EQ(source.held().slots, 2U);
  EXPECT_EQ(group.stats().slots, 1U);
}

// Scratch that is in no arena.

TEST_F(SharingGroup, ClaimsTheSmallestBlockThatIsLargeEnough) {
  scratch_pool scratch(in_group(), {.source = memory_source::cuda_malloc()});
  graph const large = captured_claims(scratch, {1 << 20, 64 << 10, 4 << 10});
  std::size_t const bytes = scratch.bytes();
  graph const medium = captured_claims(scratch, {60 << 10, 1 << 10, 700 << 10});
  EXPECT_EQ(scratch.bytes(), bytes);
  EXPECT_EQ(medium.held().bytes, bytes);
  graph const small = captured_claims(scratch, {3 << 10});
  EXPECT_EQ(small.held().bytes, scratch_pool::block_bytes(4 << 10));
  EXPECT_EQ(group.stats().bytes, bytes);
}

TEST_F(SharingGroup, LeavesLargerIdleBlocksToEagerClaims) {
  scratch_pool scratch(in_group(), {.source = memory_source::cuda_malloc()});
  for (std::size_t const bytes : {4U << 10, 1U << 20}) scratch.claim(two, bytes).release();
  sync(two);
  graph const small = captured_claims(scratch, {3 << 10});
  EXPECT_EQ(small.held().bytes, scratch_pool::block_bytes(3 << 10));
  graph const equal = captured_claims(scratch, {4 << 10, 1 << 20});
  EXPECT_EQ(scratch.bytes(), small.held().bytes + equal.held().bytes) << "of idle ones, those";
}

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

TEST_F(SharingGroup, RefusesWorkOnTwoBranchesAlsoInChildGraphsAndBodies) {
  graph const child = captured_use_of(*pool);
  graph parallel;
  graph beside = captured_use_of(*pool);
  for (graph* const each : {&parallel, &parallel, &beside})
    static_cast<void>(build(*each).add(child_node(child)));
  expect_error<usage_error>([&] { graph_exec const refused(parallel); },
                            {"graph_exec::graph_exec", "batches", "graph::add_child"});
  expect_error<usage_error>([&] { return hoist(parallel); }, {"hoist", "batches"});
  EXPECT_THROW(graph_exec const refused(beside), usage_error);
  graph_exec exec(captured_use_of(*pool));
  EXPECT_THROW(exec.update(beside), usage_error);
  graph serial = captured_use_of(*pool);
  serial.add_child(child);
  serial.add_child(child);
  run(serial);
  graph whole;
  cudaGraph_t const body = add_conditional(whole.get());
  capture_into(body, [&](cudaStream_t on) { use(*pool, on); });
  { graph_exec const alone(whole, {.bodies = {body}}); }
  whole.add_child(child);
  EXPECT_THROW(graph_exec const refused(whole, {.bodies = {body}}), usage_error);
}

TEST_F(SharingGroup, BranchesAndAnotherPartNeedANewGraphWithBothAsChildGraphs) {
  graph const child = captured_use_of(*pool);
  graph const branches = captured([&](cudaStream_t on) {
    order(on, two);
    use(*pool, on, 1);
    use(*pool, two, 2);
    order(two, on);
  });
  run(branches);
  graph followed = branches.clone();
  followed.add_child(child);
  expect_error<usage_error>([&] { graph_exec const refused(followed); },
                            {"graph_exec::graph_exec", "batches", "single line", "new graph"});
  graph both;
  both.add_child(branches);
  both.add_child(child);
  run(both);
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

TEST_F(SharingGroup, RefusesTwoBranchesOfChildGraphsThatWereHoisted) {
  graph parent;
  std::vector<hoisted> held;
  for (int i = 0; i < 2; ++i) {
    cudaGraph_t child = nullptr;
    cudaGraphNode_t const node =
        graph::embed("test", captured_use_of(*pool).core().get(), parent.get(), {});
    must(cudaGraphChildGraphNodeGetGraph(node, &child));
    held.push_back(hoist(child));
  }
  EXPECT_THROW(graph_exec const refused(parent), usage_error);
  for (hoisted& each : held) each.release();
}

TEST_F(SharingGroup, AnEdgeThatWaitsForNoEndOrdersNoChildGraph) {
  graph const child = captured_use_of(*pool);
  auto const add_behind = [&](cudaGraphEdgeData const& edge) {
    graph parent = captured_use_of(*pool);
    std::vector<cudaGraphNode_t> const nodes = nodes_of(parent.get());
    cudaGraphNode_t const last = add_kernel(parent.get(), tiny_call());
    must(cudaGraphAddDependencies(parent.get(), &nodes.back(), &last, &edge, 1));
    static_cast<void>(graph::embed("test", child.core().get(), parent.get(), {&last, 1}));
    return parent;
  };
  // The kernel in between may end before the parent's own use of the slot does.
  EXPECT_THROW(graph_exec const refused(add_behind(launch_completion_edge)), usage_error);
  EXPECT_THROW(graph_exec const refused(add_behind(block_start_edge)), usage_error);
  run(add_behind(trigger_edge));
  run(add_behind(full_edge));
}

TEST_F(SharingGroup, StatisticsNameAGraphOnceAsLongAsNothingOrdersIt) {
  graph const other = captured_use_of(*pool);
  EXPECT_EQ(group.stats().unordered, std::vector{other.id()});
  EXPECT_NE(group.describe().find("\"unordered\": [" + std::to_string(other.id()) + "]}"),
            std::string::npos)
      << group.describe();
  graph built;
  capture_into(built.get(), [&](cudaStream_t on) { use(*pool, on); });
  EXPECT_EQ(group.stats().unordered.size(), 2U);
  graph_exec const ordered(other);
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
  EXPECT_EQ(group.stats().unordered, its_id) << "launch() was not called";
  held.launch(two, [] {});
  EXPECT_TRUE(group.stats().unordered.empty());
  held.release();
}

TEST_F(SharingGroup, IsOfOneDevice) {
  if (!has_two_devices()) GTEST_SKIP() << "needs two devices";
  pool_options there = in_group();
  there.device = 1;
  expect_error<usage_error>([&] { return make_pool(there); },
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

TEST_F(SharingGroup, TellsItsStatisticsBesideALaunchThatBlocks) {
  std::array<int, 64> pageable{};
  scratch_pool scratch(with(options(4), &pool_options::group, group));
  graph_exec exec(captured([&](cudaStream_t on) {
    auto const held = scratch.claim<int>(on, pageable.size());
    hold_up(on);
    must(cudaMemcpyAsync(pageable.data(), held.data(), sizeof(pageable), cudaMemcpyDefault, on));
  }));
  std::thread launches([&] { exec.launch(one); });
  EXPECT_TRUE(wait_until([&] { return !is_idle(one); }));
  EXPECT_LE(group.stats().launches, 1U);
  EXPECT_FALSE(is_idle(one));
  flag.raise();
  launches.join();
  sync(one);
}

}  // namespace
}  // namespace escrow::test
