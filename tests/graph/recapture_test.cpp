// SPDX-License-Identifier: Apache-2.0
// cudaStreamBeginRecaptureToGraph (CUDA 13.3) releases a graph's user objects as it begins. What
// the graph held is released once, after its last use, and the graph holds what is captured anew,
// whether or not it gets a new id, which CUDA's manual does not say. No GPU was seen doing it.
#include <malloc.h>

#include <escrow/nodes.hpp>
#include <escrow/pool/memory_report.hpp>

#include "world.hpp"

namespace escrow::test {
namespace {

class Recapture : public world, public testing::WithParamInterface<bool> {
 protected:
  Recapture() { sim::set_recapture_gives_new_id(is_id_new); }
  ~Recapture() override { sim::set_recapture_gives_new_id(false); }
  void TearDown() override {
    for (auto& each : cargos_) each.reset();
    world::TearDown();
  }

  template <class Enqueue>
  void recapture(cudaGraph_t graph, Enqueue&& enqueue) {
    must(end_of_recapture(one, graph, std::forward<Enqueue>(enqueue)));
  }
  /// What captured_plainly(taken) captures, behind a flag.
  [[nodiscard]] auto loading(cargo& taken) {
    return [this, &taken](cudaStream_t on) {
      hold_up(on);
      load(taken, on);
    };
  }
  void recapture(cudaGraph_t graph, cargo& taken) { recapture(graph, loading(taken)); }
  void run_plainly(owned_exec const& exec) {
    must(cudaGraphLaunch(exec, two));
    sync(two);
  }
  /// How many of the slots of a pool can be claimed.
  [[nodiscard]] std::size_t free_slots(block_pool& pool) {
    std::vector<block_lease> claimed;
    while (auto each = pool.try_claim(asking)) claimed.push_back(std::move(*each));
    return claimed.size();
  }

  bool const is_id_new = GetParam();

 private:
  std::optional<cargo> cargos_[2]{make_cargo(), make_cargo()};

 protected:
  cargo& before = *cargos_[0];
  cargo& now = *cargos_[1];
};

INSTANTIATE_TEST_SUITE_P(Id, Recapture, testing::Bool(),
                         [](auto const& each) { return each.param ? "Changes" : "Stays"; });

TEST_P(Recapture, ReleasesWhatTheGraphHeldAndHoldsWhatIsCapturedAnew) {
  owned_graph source = captured_plainly(loading(before));
  EXPECT_TRUE(is_kept(before));
  recapture(source, now);
  EXPECT_TRUE(is_released(before));
  EXPECT_TRUE(stays_kept(now));
  source.reset();
  EXPECT_TRUE(is_released(now));
}

TEST_P(Recapture, ClaimsASlotThatIsIdle) {
  block_pool pool = make_pool(2);
  static_cast<void>(captured_plainly([&](cudaStream_t on) {
    block_lease const held = pool.claim(on);
    static_cast<void>(pool.claim(on));
  }));
  ASSERT_TRUE(drained());
  auto const claim = [&](cudaStream_t on) { static_cast<void>(pool.claim(on)); };
  owned_graph source = captured_plainly(claim);
  recapture(source, claim);
  source.reset();
  ASSERT_TRUE(drained());
  EXPECT_EQ(free_slots(pool), 2U);
}

TEST_P(Recapture, OfWhatAnExecHoldsReleasesItAfterTheExecsLastLaunch) {
  owned_graph source = captured_plainly(loading(before));
  std::optional<graph_exec> exec(source.get());
  exec->launch(two);
  recapture(source, now);
  EXPECT_TRUE(is_kept(before));
  exec->update(source.get());
  EXPECT_TRUE(exec->is_bare());
  EXPECT_TRUE(stays_kept(before)) << "its launch runs";
  flag.raise();
  EXPECT_TRUE(is_released(before));
  run(*exec);
  source.reset();
  expect_bare_only_holder(exec, now);
}

TEST_P(Recapture, OfWhatWasHoistedLeavesItToItsHandle) {
  owned_graph const source = captured_plainly(loading(before));
  hoisted first = hoist(source);
  owned_exec const exec = instantiate(source);
  must(cudaGraphLaunch(exec, two));
  recapture(source, now);
  hoisted second = hoist(source);
  cudaGraphExecUpdateResultInfo result{};
  must(cudaGraphExecUpdate(exec, source, &result));
  EXPECT_TRUE(has_no_user_object());
  first.release_after(two);
  EXPECT_TRUE(stays_kept(before)) << "its launch runs";
  flag.raise();
  EXPECT_TRUE(is_released(before));
  run_plainly(exec);
  EXPECT_TRUE(stays_kept(now));
  second.release_after(two);
  EXPECT_TRUE(is_released(now));
}

// The rule for all cases, and the only one for plain copies.
TEST_P(Recapture, AfterHoistLeavesAPlainExecWhatItUsesAndTheGraphWhatIsCapturedAnew) {
  owned_graph source = captured_plainly(loading(before));
  owned_exec exec = instantiate(source);
  must(cudaGraphLaunch(exec, two));
  hoist(source).release();
  recapture(source, now);
  EXPECT_TRUE(stays_kept(before));
  flag.raise();
  sync(two);
  exec.reset();
  EXPECT_TRUE(is_released(before));
  EXPECT_TRUE(stays_kept(now));
  exec = instantiate(source);
  source.reset();
  run_plainly(exec);
  EXPECT_TRUE(stays_kept(now));
  exec.reset();
  EXPECT_TRUE(is_released(now));
}

// Escrow cannot see that the graph was recaptured, as CUDA has not destroyed the set's user object.
TEST_P(Recapture, WithoutHoistAPlainExecHoldsWhatIsCapturedAnewIfTheIdStays) {
  owned_graph source = captured_plainly(loading(before));
  owned_exec exec = instantiate(source);
  recapture(source, now);
  exec.reset();
  EXPECT_TRUE(is_released(before));
  if (is_id_new) {
    EXPECT_TRUE(stays_kept(now));
    source.reset();
  }
  EXPECT_TRUE(is_released(now)) << "too early, if the graph is there";
}

TEST_P(Recapture, AgainAndAgainReleasesEachTimeWhatTheLastOneClaimedAndRetired) {
  owned_graph source = captured_plainly(loading(before));
  std::optional<graph_exec> exec(source.get());
  flag.raise();
  cargo* last = &before;
  std::vector<cargo> all;
  for (int i = 0; i < 4; ++i) all.push_back(make_cargo());
  for (cargo& each : all) {
    if (&each != &all[1]) hoist(source).release();
    recapture(source, each);
    run(*exec);
    EXPECT_TRUE(is_kept(*last));
    exec->update(source.get());
    EXPECT_TRUE(is_released(*last));
    last = &each;
  }
  source.reset();
  expect_bare_only_holder(exec, *last);
}

// The worker is blocked: sets that CUDA released are still registered.
TEST_P(Recapture, ClaimsNoSlotAgainThatTheGraphDoesNotHold) {
  block_pool pool = make_pool(4);
  fate_ptr const fate = make_fate();
  auto const enqueue = [&](cudaStream_t on) {
    worker->retire(on, std::make_shared<probe>(fate));
    use(pool, on);
    block_lease const first = pool.claim(on);
    block_lease const second = pool.claim(on);  // not the one that was just used
  };
  block_worker();
  for (bool const has_exec : {false, true}) {
    owned_graph source = captured_plainly(enqueue);
    std::optional<graph_exec> exec;
    if (has_exec) exec.emplace(source.get());
    recapture(source, enqueue);
    if (has_exec) {
      EXPECT_EQ(pool.stats().in_graphs, 4U) << "two of the exec's and two of the graph's";
      exec->update(source.get());
    } else {
      exec.emplace(source.get());
    }
    source.reset();
    EXPECT_TRUE(wait_until([&] { return free_slots(pool) == 2; }));
    run(*exec);
    exec.reset();
    EXPECT_TRUE(wait_until([&] { return free_slots(pool) == 4; }));
  }
}

TEST_P(Recapture, OfAGraphInASharingGroupMayShareSlotsWithOthers) {
  pool_options grouped = options(2);
  grouped.group.emplace();
  block_pool pool = make_pool(grouped);
  owned_graph source = captured_plainly([&](cudaStream_t on) { use(pool, on); });
  owned_graph const other = captured_plainly([&](cudaStream_t on) {
    block_lease const first = pool.claim(on);
    block_lease const second = pool.claim(on);
  });
  block_worker();
  recapture(source, [&](cudaStream_t on) { use(pool, on); });
  may_end.store(true);
  EXPECT_EQ(made(), 2);
  graph_exec exec(source.get());
  source.reset();
  run(exec);
  EXPECT_TRUE(is_kept(pool));
}

TEST_P(Recapture, HoldsTheSlotOfALeaseFromBeforeThatIsReleasedInIt) {
  scratch_pool memories;
  std::optional<buffer_lease<int>> memory;
  std::optional<block_lease> held;
  owned_graph source = captured_plainly([&](cudaStream_t on) {
    held.emplace(before.pool.claim(on));
    memory.emplace(memories.claim<int>(on, 1));
    fill(*held, on, 1);
  });
  block_worker();  // the set of before is closed, and still registered
  recapture(source, [&](cudaStream_t on) {
    memory->record_stream(on);
    held->record_stream(on);
    fill(*held, on, 2);
    held.reset();
  });
  may_end.store(true);
  owned_exec exec = instantiate(source);
  source.reset();
  if (is_id_new) static_cast<void>(before.pool.try_claim(one));  // gives it the stream
  EXPECT_TRUE(stays_kept(before.pool));
  run_plainly(exec);
  exec.reset();
  EXPECT_TRUE(is_released(before.pool));
}

TEST_P(Recapture, OfAGraphOfEscrowIsSeenByItsExecsAndClones) {
  graph source = captured_behind_flag(before);
  std::optional<graph_exec> exec(source);
  recapture(source.get(), [&](cudaStream_t on) {
    must(launch_add(on, started(), 1));
    hold_up(on);
    load(now, on);
    must(launch_add(on, ended(), 1));
  });
  EXPECT_EQ(source.held().slots, 1U);
  EXPECT_EQ(source.held().owners, 1U);
  graph copy = source.clone();
  exec->update(source);
  EXPECT_TRUE(is_released(before));
  source = {};
  exec.reset();
  EXPECT_TRUE(stays_kept(now));
  exec.emplace(copy);
  copy = {};
  flag.raise();
  expect_bare_only_holder(exec, now);
}

TEST_P(Recapture, LeavesOwnersOfNodesBuiltByHandUntilTheNodeIsChanged) {
  auto* const add = function_of<int*, int>(kernel_id::add);
  graph source(*worker);
  auto const owned = [&](fate_ptr const& fate) {
    auto const ends = [mine = std::make_shared<probe>(probe(fate))](int*) {};
    return std::shared_ptr<int>(cells.data(), ends);
  };
  node const changed = build(source).add(kernel_node(add, {}, owned(before.fate), 1));
  for (bool const is_retiring : {false, true}) {
    recapture(source.get(), [&](cudaStream_t on) {
      must(launch_add(on, cells.data(), 2));
      if (is_retiring) retire(on, now.fate);
    });
    fate_ptr const next = make_fate();
    EXPECT_TRUE(stays_kept(before.fate));
    changed.set(kernel_node(add, {}, owned(next), 4));
    EXPECT_TRUE(is_released(before.fate));
    before.fate = next;
  }
  run(source);
  EXPECT_EQ(cells.load(), 4);
  EXPECT_TRUE(is_kept(now.fate));
  source = {};
  EXPECT_TRUE(is_released(now.fate));
  EXPECT_TRUE(is_released(before.fate));
}

TEST_P(Recapture, ThatCannotBeginOrFailsLosesNothing) {
  owned_graph source = captured_plainly(loading(before));
  sim::fail_call("cudaStreamBeginRecaptureToGraph", cudaErrorInvalidValue);
  EXPECT_EQ(
      cudaStreamBeginRecaptureToGraph(one, cudaStreamCaptureModeRelaxed, source.get(), nullptr),
      cudaErrorInvalidValue);
  static_cast<void>(cudaGetLastError());
  EXPECT_TRUE(stays_kept(before));
  std::optional<graph_exec> exec(source.get());
  cudaError_t const ended = end_of_recapture(one, source, [&](cudaStream_t on) {
    hold_up(on);
    load(now, on);
    EXPECT_EQ(launch_add(on, cells.data(), 1), cudaErrorGraphRecaptureFailure);
    EXPECT_THROW(static_cast<void>(before.pool.claim(on)), usage_error);
  });
  EXPECT_EQ(ended, cudaErrorGraphRecaptureFailure);
  EXPECT_TRUE(is_kept(now)) << "the graph is to be destroyed by its owner";
  source.reset();
  EXPECT_TRUE(is_released(now));
  flag.raise();
  expect_bare_only_holder(exec, before);
}

// Only what a released hoist took is refused.
TEST_P(Recapture, AfterAReleaseMayUseWhatTheGraphNeverHeld) {
  scratch_pool scratch(options(4));
  auto const weights = scratch.claim<int>(one, 64);
  auto const use_both = [&](cudaStream_t on) {
    auto const own = scratch.claim<int>(on, 64);
    must(launch_add(on, own.data(), 1));
    must(launch_add(on, weights.data(), 1));
  };
  owned_graph const source = captured_plainly(use_both);
  hoist(source.get()).release();
  expect_error<usage_error>([&] { graph_exec const late(source.get()); },
                            {"has released what the graph uses"});
  recapture(source, use_both);
  EXPECT_NO_THROW(graph_exec{source.get()});
  hoist(source.get()).release();
}

TEST_P(Recapture, NothingStaysOfHoistsThatWereReleased) {
  scratch_pool scratch(options(4));
  auto const use = [&](cudaStream_t on) {
    must(launch_add(on, scratch.claim<int>(on, 64).data(), 1));
  };
  owned_graph const source = captured_plainly(use);
  auto const again = [&](int times) {
    for (int i = 0; i < times; ++i) {
      hoist(source.get()).release();
      recapture(source, use);
    }
    EXPECT_TRUE(drained());
    return mallinfo2().uordblks;
  };
  std::size_t const before_many = again(100);
  EXPECT_LT(again(10'000), before_many + 400'000) << "80 bytes of each would be 800,000";
}

TEST_P(Recapture, TakesTheMemoryOfTheCaptureBefore) {
  for (bool const is_hoisted : {false, true}) {
    std::string const label = is_hoisted ? "hoisted" : "not hoisted";
    sharing_group const group({.label = label});
    scratch_pool scratch(with(options(64), &pool_options::group, group));
    auto const use = [&](cudaStream_t on) {
      auto const result = scratch.claim_kept<int>(on, 64);  // first
      auto const block = scratch.claim<int>(on, std::size_t{1} << 21);
      must(launch_add(on, block.data(), 1));
    };
    owned_graph const source = captured_plainly(use);
    graph_exec exec(source.get());
    for (int i = 0; i < 5; ++i) {
      if (is_hoisted) hoist(source.get()).release();
      recapture(source, use);
      exec.update(source.get());
      exec.launch(two);
      EXPECT_LE(group.stats().bytes, std::size_t{25} << 20) << i << is_hoisted;
    }
    sync(two);
    for (group_layout const& each : report_memory().groups) {
      if (each.label != label) continue;
      for (auto const& layout : each.graphs) EXPECT_LE(layout.claims.size(), 1U) << each.label;
    }
  }
}

}  // namespace
}  // namespace escrow::test
