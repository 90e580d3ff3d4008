// SPDX-License-Identifier: Apache-2.0
// Leases of sharing groups that live across a child graph, or beyond their capture: what uses the
// same slot there is refused, or told of.
#include <atomic>
#include <escrow/internal/graph_query.hpp>
#include <escrow/internal/graph_registry.hpp>
#include <escrow/nodes.hpp>

#include "pool_world.hpp"

namespace escrow::test {
namespace {

class LivingLease : public sharing_world {
 protected:
  /// A graph that keeps its lease. Its capture is plain: nobody is told.
  [[nodiscard]] graph captured_plainly_with(std::optional<block_lease>& kept, int value = 1) {
    graph made;
    capture_into(made.get(), [&](cudaStream_t on) {
      kept.emplace(pool->claim(on));
      fill(*kept, on, value);
    });
    return made;
  }
  /// What the text of a refusal has to name.
  std::vector<std::string> const names{"child graph", "living_lease_test.cpp", "blocks",
                                       "claim_kept"};
};

// A child graph behind the claim.

TEST_F(LivingLease, IsNotOverwrittenByAChildGraphThatWasCapturedEarlier) {
  graph const child = captured_use_of(*pool);
  std::optional<block_lease> kept;
  graph parent = captured_plainly_with(kept);
  EXPECT_EQ(made(), 1) << "both use the slot";
  std::vector<cudaGraphNode_t> const nodes = nodes_of(parent.get());
  expect_error<usage_error>([&] { return parent.add_child(child); }, names);
  expect_error<usage_error>(
      [&] { return graph::embed("test", child.core().get(), parent.get(), nodes); }, names);
  EXPECT_EQ(nodes_of(parent.get()), nodes) << "nothing was added";
  graph_exec const usable(parent);
  kept.reset();
  parent.add_child(child);
  run(parent);
}

TEST_F(LivingLease, IsNotOverwrittenByWhatHasTheGraphAsAChildOrWasHoistedOrCopied) {
  graph const child = captured_use_of(*pool);
  graph outer;
  outer.add_child(child);
  graph const clone = child.clone();
  hoisted held = hoist(child);
  graph const clone_of_hoisted = child.clone();
  std::optional<block_lease> kept;
  graph parent = captured_plainly_with(kept);
  for (graph const* const each : {&std::as_const(outer), &clone, &child, &clone_of_hoisted}) {
    expect_error<usage_error>([&] { return parent.add_child(*each); }, names);
  }
  kept.reset();
  held.release();
}

TEST_F(LivingLease, IsNotOverwrittenAlsoInCopiesOfItsGraph) {
  graph const child = captured_use_of(*pool);
  std::optional<block_lease> kept;
  graph source = captured_plainly_with(kept);
  graph clone = source.clone();
  expect_error<usage_error>([&] { return clone.add_child(child); }, names);
  graph outer;
  outer.add_child(source);
  expect_error<usage_error>([&] { return outer.add_child(child); }, names);
  hoisted held = hoist(source);
  expect_error<usage_error>([&] { return source.add_child(child); }, names);
  // Its own graph leaves there what the lease has.
  clone.add_child(source);
  kept.reset();
  outer.add_child(child);
  held.release();
}

TEST_F(LivingLease, OfAnEmbeddedGraphIsNotOverwrittenByTheParent) {
  std::optional<block_lease> kept;
  graph const child = captured_plainly_with(kept);
  graph parent;
  parent.add_child(child);
  capture_into(parent.get(), [&](cudaStream_t on) { use(*pool, on); });
  EXPECT_EQ(made(), 2) << "a claim gets another slot";
  kept.reset();
}

TEST_F(LivingLease, ThatIsClaimedBehindAChildGraphIsRight) {
  graph const child = captured_use_of(*pool);
  graph parent;
  cudaGraphNode_t const node = parent.add_child(child);
  std::optional<block_lease> kept;
  capture_into(
      parent.get(),
      [&](cudaStream_t on) {
        kept.emplace(pool->claim(on));
        fill(*kept, on, 3);
      },
      &node, 1);
  EXPECT_EQ(made(), 1) << "both use the slot";
  for (graph_exec exec(parent); int i : {0, 1}) {
    static_cast<void>(i);
    exec.launch(two);
    check(*kept, two, 3, mismatches);
  }
  sync(two);
  kept.reset();
}

TEST_F(LivingLease, ThatEndedInItsCaptureMayBeOverwrittenBehindThat) {
  graph const child = captured_use_of(*pool);
  graph parent = captured([&](cudaStream_t on) {
    use(*pool, on, 1);
    use(*pool, on, 2);
  });
  EXPECT_EQ(made(), 1);
  parent.add_child(child);
  run(parent);
  graph clone = parent.clone();
  clone.add_child(child);
  run(clone);
}

// The child gets the slot after it was embedded, when the lease has ended behind it.
TEST_F(LivingLease, IsNotOverwrittenByWhatIsCapturedLaterIntoAChildGraphInsideOfIt) {
  graph blank = captured([&](cudaStream_t on) { must(launch_add(on, cells.data(), 1)); });
  std::optional<block_lease> kept;
  graph parent = captured_plainly_with(kept);
  cudaGraphNode_t const node = parent.add_child(blank);
  cudaGraph_t child = nullptr;
  must(cudaGraphChildGraphNodeGetGraph(node, &child));
  capture_into(
      parent.get(),
      [&](cudaStream_t on) {
        check(*kept, on, 1, mismatches);
        kept.reset();
      },
      &node, 1);
  { graph_exec const right(parent); }
  graph const copied_before = parent.clone();
  capture_into(child, [&](cudaStream_t on) { use(*pool, on); });
  ASSERT_EQ(made(), 1) << "both use the slot";
  expect_error<usage_error>([&] { graph_exec const refused(parent); }, names);
  expect_error<usage_error>([&] { return hoist(parent); }, names);
  graph_exec exec(blank);
  EXPECT_THROW(exec.update(parent), usage_error);
  graph const copied_after = parent.clone();
  expect_error<usage_error>([&] { graph_exec const refused(copied_after); }, names);
  run(copied_before);
}

TEST_F(LivingLease, WithoutAGroupIsNoOneElsesConcern) {
  block_pool other = make_pool(options(8));
  graph const child = captured_use_of(other);
  std::optional<block_lease> kept;
  graph parent = captured([&](cudaStream_t on) { kept.emplace(other.claim(on)); });
  parent.add_child(child);
  run(parent);
  kept.reset();
}

// Claims on one line where the lease before was released: graphs know them as one.

TEST_F(LivingLease, GoesOnWithTheNextClaimThatNothingSeparatesFromIt) {
  auto const leases_in = [](graph const& of) {
    return graph_registry::global().leases_of(of.get()).size();
  };
  graph const chain = captured([&](cudaStream_t on) {
    for (int i = 0; i < 40; ++i) use(*pool, on);
  });
  EXPECT_EQ(leases_in(chain), 1U);
  graph const with_work_between = captured([&](cudaStream_t on) {
    for (int i = 0; i < 2; ++i) {
      use(*pool, on);
      must(launch_add(on, cells.data(), 1));
    }
  });
  EXPECT_EQ(leases_in(with_work_between), 2U);
  graph const on_two_lines = captured([&](cudaStream_t on) {
    pool->claim(on).release();
    pool->claim(on).release();
  });
  EXPECT_EQ(leases_in(on_two_lines), 2U);
  EXPECT_FALSE(group.order()->leases->is_any_living());
}

TEST_F(LivingLease, ThatGoesOnIsNotOverwritten) {
  graph const child = captured_use_of(*pool);
  std::optional<block_lease> kept;
  graph parent;
  capture_into(parent.get(), [&](cudaStream_t on) {
    for (int i = 0; i < 2; ++i) {
      kept.emplace(pool->claim(on));
      fill(*kept, on, i);
      if (i == 0) kept.reset();
    }
  });
  EXPECT_EQ(made(), 1) << "both use the slot";
  EXPECT_EQ(graph_registry::global().leases_of(parent.get()).size(), 1U);
  expect_error<usage_error>([&] { return parent.add_child(child); }, names);
  kept.reset();
  parent.add_child(child);
  run(parent);
}

TEST_F(LivingLease, DoesNotGoOnOnceACopyHasSeenItsEnd) {
  graph const child = captured_use_of(*pool);
  graph parent;
  std::vector<cudaGraphNode_t> last;
  std::optional<block_lease> kept;
  auto const claim_at_the_end = [&] {
    capture_into(
        parent.get(),
        [&](cudaStream_t on) {
          kept.emplace(pool->claim(on));
          fill(*kept, on, 1);
        },
        last.data(), last.size());
  };
  claim_at_the_end();
  last = nodes_of(parent.get());
  capture_into(
      parent.get(), [&](cudaStream_t) { kept.reset(); }, last.data(), last.size());
  graph clone = parent.clone();
  claim_at_the_end();
  EXPECT_EQ(graph_registry::global().leases_of(parent.get()).size(), 2U);
  clone.add_child(child);
  kept.reset();
  run(clone);
}

// Beyond its capture.

TEST_F(LivingLease, IsReportedOnceWhenItsCaptureEnds) {
  errors_expected = true;
  std::optional<block_lease> kept;
  std::optional<block_lease> also_kept;
  graph const source = captured([&](cudaStream_t on) {
    use(*pool, on);
    kept.emplace(pool->claim(on));
    also_kept.emplace(pool->claim(on));
    EXPECT_EQ(group.stats().outliving, 0U) << "the capture goes on";
  });
  EXPECT_EQ(errors->size(), 2U) << errors->all();
  for (char const* part :
       {"capture: ", "blocks", "living_lease_test.cpp", "batches", "claim_kept"}) {
    EXPECT_NE(errors->all().find(part), std::string::npos) << part << "\n" << errors->all();
  }
  EXPECT_EQ(group.stats().outliving, 2U);
  EXPECT_NE(group.describe().find("\"outliving\": 2"), std::string::npos) << group.describe();
  graph const clone = source.clone();
  EXPECT_EQ(group.stats().outliving, 2U) << "a lease counts once";
  kept.reset();
  EXPECT_EQ(group.stats().outliving, 1U);
  also_kept.reset();
  EXPECT_EQ(group.stats().outliving, 0U);
  EXPECT_EQ(errors->size(), 2U) << errors->all();
}

TEST_F(LivingLease, IsCountedWithoutItsGraph) {
  errors_expected = true;
  std::optional<block_lease> kept;
  graph_exec exec(captured([&](cudaStream_t on) { kept.emplace(pool->claim(on)); }));
  ASSERT_TRUE(drained());
  EXPECT_EQ(group.stats().outliving, 1U);
  run(exec);
  kept.reset();
  EXPECT_EQ(group.stats().outliving, 0U);
}

TEST_F(LivingLease, OfAPlainCaptureIsInTheStatisticsOnceTheGraphIsUsed) {
  std::optional<block_lease> kept;
  graph const source = captured_plainly_with(kept);
  EXPECT_EQ(group.stats().outliving, 0U) << "nobody has told that its capture has ended";
  graph_exec const exec(source);
  EXPECT_EQ(group.stats().outliving, 1U);
  kept.reset();
  EXPECT_EQ(group.stats().outliving, 0U);
}

TEST_F(LivingLease, IsNotReportedWithoutAGroupNorIfItEndsInItsCapture) {
  block_pool other = make_pool(options(8));
  std::optional<block_lease> kept;
  graph const source = captured([&](cudaStream_t on) {
    kept.emplace(other.claim(on));
    use(*pool, on);
  });
  EXPECT_EQ(group.stats().outliving, 0U);
  kept.reset();
}

// Statistics beside captures.

TEST_F(LivingLease, MayBeClaimedWhileStatisticsAreRead) {
  std::atomic<bool> ends{false};
  std::jthread const reader([&] {
    while (!ends.load()) {
      EXPECT_LE(group.stats().slots, 2U);
      static_cast<void>(group.describe());
      static_cast<void>(worker->describe());
      static_cast<void>(pool->describe());
      std::this_thread::yield();
    }
  });
  for (int i = 0; i < 100; ++i) {
    graph const source = captured([&](cudaStream_t on) {
      block_lease const first = pool->claim(on);
      for (int use_of_one_line = 0; use_of_one_line < 3; ++use_of_one_line) use(*pool, on);
    });
    graph const clone = source.clone();
    EXPECT_EQ(clone.held().slots, 2U);
  }
  ends.store(true);
}

}  // namespace
}  // namespace escrow::test
