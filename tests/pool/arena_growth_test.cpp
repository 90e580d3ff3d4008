// SPDX-License-Identifier: Apache-2.0
// An arena stays as large as its largest graph needs, and a capture as fast as its claims, whatever
// else graphs go through.
#include <escrow/internal/graph_query.hpp>
#include <escrow/nodes.hpp>
#include <random>

#include "allocation_watch.hpp"
#include "arena_world.hpp"

namespace escrow::test {
namespace {

class ArenaGrowth : public arena_world {
 protected:
  /// Behind all that the graph has.
  void claim_again(graph const& in, scratch_pool& pool, std::size_t mebibytes_claimed) {
    std::vector<cudaGraphNode_t> const last = nodes_of(in.get());
    capture_into(
        in.get(), [&](cudaStream_t on) { use_scratch(pool, on, 1, mebibytes_claimed * mebibyte); },
        &last.back(), 1);
  }
};

TEST_F(ArenaGrowth, CapturesIntoAnInstantiatedGraphUseItsPlaces) {
  scratch_pool pool(in_group());
  graph source = captured([&](cudaStream_t on) { use_scratch(pool, on, 1, 4 * mebibyte); });
  for (int i = 0; i < 5; ++i) {
    graph_exec(source).launch(two);
    claim_again(source, pool, 4);
  }
  graph_exec(source).launch(two);
  sync_all();
  EXPECT_EQ(mebibytes(), 4U);
}

TEST_F(ArenaGrowth, CapturesIntoCopiesGoBehindTheirOriginalOnly) {
  scratch_pool pool(in_group());
  graph const source = captured([&](cudaStream_t on) { use_scratch(pool, on, 1, 4 * mebibyte); });
  std::vector<graph> copies;
  for (int i = 0; i < 5; ++i) {
    copies.push_back(source.clone());
    claim_again(copies.back(), pool, 4);
  }
  EXPECT_EQ(mebibytes(), 8U);
}

TEST_F(ArenaGrowth, TrimGivesBackWhatADestroyedGraphAloneReached) {
  scratch_pool pool(in_group());
  std::optional<graph> large(captured_claims(pool, {200}));
  graph const small = captured_claims(pool, {1});
  large.reset();
  EXPECT_TRUE(drained());
  EXPECT_GE(pool.trim(), 168 * mebibyte);
  EXPECT_LE(mebibytes(), 32U) << "pages are in pieces of 32 MiB";
}

TEST_F(ArenaGrowth, ScalarsThatStayDoNotBreakUpWhatLargeBlocksLeave) {
  scratch_pool pool(in_group());
  graph const source = captured([&](cudaStream_t on) {
    std::vector<lease<device_block>> scalars;
    for (int layer = 0; layer < 8; ++layer) {
      {
        auto const block = pool.claim(on, 64 * mebibyte);
        scalars.push_back(pool.claim(on, 4));
      }
      scalars.push_back(pool.claim(on, 4));
    }
  });
  EXPECT_EQ(mebibytes(), 66U);
}

TEST_F(ArenaGrowth, ManyClaimsUseFewSlots) {
  scratch_pool pool(in_group(4));
  graph const source = captured([&](cudaStream_t on) {
    std::minstd_rand next(1);
    std::vector<std::optional<lease<device_block>>> held(8);
    for (int i = 0; i < 1000; ++i) {
      auto& each = held[next() % held.size()];
      each.reset();
      each.emplace(pool.claim(on, 256 * (1 + next() % 64)));
      if (i % 8 == 0) must(test::launch_tiny(on));
    }
  });
  EXPECT_LT(group->stats().slots, 100U);
}

TEST_F(ArenaGrowth, ASlotThatCouldNotMoveIsNotUsedWhereItWas) {
  scratch_pool pool(in_group());
  bool has_moved = false;
  for (std::uint64_t failing = 1; !has_moved; ++failing) {
    ASSERT_LT(failing, 100U);
    graph const source = captured([&](cudaStream_t on) {
      use_scratch(pool, on, 1, 1024);
      use_scratch(pool, on, 2, 4096);  // over it
      auto const in_its_place = pool.claim(on, 512);
      fill(in_its_place, on, 3);
      try {
        allocation_watch const watch(failing);
        auto const moved = pool.claim(on, 1024);
        has_moved = true;
      } catch (std::bad_alloc const&) {
      }
      auto const again = pool.claim(on, 1024);
      EXPECT_FALSE(overlap(in_its_place, again)) << "allocation " << failing << " failed";
    });
  }
}

TEST_F(ArenaGrowth, AChangedNodeOfAnEarlierUserIsRefusedAtTheRelease) {
  scratch_pool pool(in_group());
  graph source;
  std::optional<lease<device_block>> kept;
  capture_into(source.get(), [&](cudaStream_t on) {
    use_scratch(pool, on, 1);
    kept.emplace(pool.claim(on, 4096));
  });
  for (cudaGraphNode_t const node : nodes_of(source.get())) must(cudaGraphDestroyNode(node));
  capture_into(source.get(), [&](cudaStream_t on) {
    order(on, three);
    expect_error<usage_error>([&] { kept->release(three); }, {"lease::release", "destroyed"});
    order(three, on);
  });
  kept.reset();
}

// What an earlier walk found may be no more.
TEST_F(ArenaGrowth, AGraphThatLostNodesIsCapturedIntoAgain) {
  scratch_pool pool(in_group());
  graph source;
  constexpr std::size_t count = 6;
  auto const wait = [](cudaStream_t on) {
    for (int i = 0; i < 24; ++i) must(launch_tiny(on));
  };
  capture_into(source.get(), [&](cudaStream_t on) {
    std::vector<lease<device_block>> held;
    for (std::size_t i = 0; i < count; ++i) held.push_back(pool.claim(on, 4096 * (i + 1)));
    for (auto& each : held) {
      must(launch_tiny(on));
      each.release();
    }
    wait(on);
    use_scratch(pool, on, 4096);  // its walk finds all
    wait(on);
  });
  std::vector<cudaGraphNode_t> const all = nodes_of(source.get());
  for (std::size_t i = 1; i < count - 1; ++i) must(cudaGraphDestroyNode(all[i]));
  cudaGraphNode_t const last = all.back();
  // It claims before new nodes get the handles of the destroyed ones.
  auto const again = [&](cudaStream_t on) {
    auto const small = pool.claim(on, 4096);
    auto const large = pool.claim(on, mebibyte);
    EXPECT_FALSE(overlap(small, large));
    must(launch_tiny(on));
  };
  capture_into(source.get(), again, &last, 1);
  graph_exec exec(source);
  run(exec);
}

TEST_F(ArenaGrowth, LimitsOfThePoolDoNotCountIt) {
  scratch_pool pool(in_group(), {.bytes_max = 4096});
  graph const source = captured_claims(pool, {1});
  EXPECT_EQ(mebibytes(), 2U);
  EXPECT_THROW(static_cast<void>(pool.claim(two, mebibyte)), pool_exhausted);
}

TEST_F(ArenaGrowth, CloseForNamesALeaseThatOutlivesItsGraph) {
  scratch_pool pool(in_group());
  std::optional<lease<device_block>> kept;
  {
    owned_graph const source =
        captured_plainly([&](cudaStream_t on) { kept.emplace(pool.claim(on, mebibyte)); });
  }
  EXPECT_TRUE(drained());
  std::vector<holder> const left = pool.close_for(std::chrono::milliseconds(1));
  ASSERT_EQ(left.size(), 1U);
  EXPECT_TRUE(left.front().is_lease);
  kept->leave_to_graph();
}

#ifdef ESCROW_TEST_RUNTIME_SIM  // a small device; how many calls are made
TEST_F(ArenaGrowth, ClaimsThatFindNoMemoryGetThatOfDestroyedGraphs) {
  sim::set_device_memory(64 * mebibyte);
  scratch_pool pool(in_group());
  { graph const source = captured_claims(pool, {40}); }
  EXPECT_TRUE(drained());
  EXPECT_EQ(pool.claim(two, 40 * mebibyte)->size(), 40 * mebibyte);
  EXPECT_EQ(mebibytes(), 0U);
  sim::set_device_memory(sim::options{}.device_memory);
}

TEST_F(ArenaGrowth, ACaptureWaitsForEagerWorkThatHasItsMemory) {
  sim::set_device_memory(64 * mebibyte);
  scratch_pool pool(in_group());
  {
    auto const busy = pool.claim(two, 30 * mebibyte);
    hold_up(two);
  }
  std::jthread const ends([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    flag.raise();
  });
  graph const source = captured_claims(pool, {40});
  EXPECT_GE(mebibytes(), 40U);
  sim::set_device_memory(sim::options{}.device_memory);
}

TEST_F(ArenaGrowth, AChildGraphCostsTheSameBesideManyOthers) {
  scratch_pool pool(in_group());
  graph const child = captured([&](cudaStream_t on) { use_scratch(pool, on, 1); });
  graph parent;
  auto const calls_of_ten = [&] {
    std::uint64_t const before = sim::calls();
    for (int i = 0; i < 10; ++i) parent.add_child(child);
    return sim::calls() - before;
  };
  std::uint64_t const first = calls_of_ten();
  for (int i = 0; i < 100; ++i) parent.add_child(child);
  EXPECT_LE(calls_of_ten(), 2 * first);
}
#endif

// Without an arena, too: the claim alone uses its stream.
TEST_F(ArenaGrowth, ALeaseThatIsReleasedUnusedOnAnotherStreamKeepsItsOrder) {
  scratch_pool pool(options(1));
  hold_up(two);
  { auto const used = pool.claim(two, 4096); }
  pool.claim(two, 4096).release(three);
  { auto const next = pool.claim(three, 4096); }
  must(launch_add(three, cells.data(), 1));
  EXPECT_TRUE(stays_busy(three));
  flag.raise();
  sync_all();
}

}  // namespace
}  // namespace escrow::test
