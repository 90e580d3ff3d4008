// SPDX-License-Identifier: Apache-2.0
// Sets of graphs that share execs: what runs, which graphs share, how long each keeps what it
// holds, and with what launches are ordered.
#include "graph_nodes.hpp"
#include "world.hpp"

namespace escrow::test {
namespace {

class ExecSet : public world {
 protected:
  /// All such graphs have one shape.
  [[nodiscard]] graph adding(int value) {
    return captured([&](cudaStream_t on) { must(launch_add(on, cells.data(), value)); });
  }
  [[nodiscard]] graph with_attribute(cudaLaunchAttributeID id, int value) {
    return captured([&](cudaStream_t on) {
      must(cluster_size_call(cells.data()).launch(on, 8, {attribute_of(id, value)}));
    });
  }
  [[nodiscard]] int launched(exec_set::member which) {
    cells.store(0, 0);
    set->launch(which, two);
    sync(two);
    return cells.load();
  }

  void TearDown() override {
    set.reset();
    world::TearDown();
  }

  std::optional<exec_set> set{std::in_place};
};

TEST_F(ExecSet, RunsTheGraphThatIsLaunchedAndUpdatesOnlyForAnother) {
  std::vector<exec_set::member> members(4);
  int value = 0;
  for (auto& each : members) each = set->add(adding(value++));
  for (int const i : {3, 3, 0, 2, 2, 2, 1})
    EXPECT_EQ(launched(members[static_cast<std::size_t>(i)]), i);
  exec_set moved = std::move(*set);
  *set = std::move(moved);
  EXPECT_EQ(launched(members[3]), 3);
  exec_set_stats const now = set->stats();
  EXPECT_EQ(now.members, 4U);
  EXPECT_EQ(now.execs, 1U);
  EXPECT_EQ(now.switches, 4U);
  EXPECT_TRUE(now.reasons.empty());
}

TEST_F(ExecSet, KeepsWhatAllItsGraphsHoldUntilItsEndWithoutUserObjects) {
  cargo first = make_cargo();
  cargo second = make_cargo();
  auto const one_of = set->add(captured(first));
  auto const other = set->add(captured(second));
  EXPECT_TRUE(has_no_user_object());
  EXPECT_EQ(set->held().slots, 2U);
  EXPECT_EQ(set->held().owners, 2U);
  for (auto const each : {one_of, other, one_of}) set->launch(each, two);
  sync(two);
  EXPECT_TRUE(stays_kept(first));
  EXPECT_TRUE(is_kept(second));
  set.reset();
  EXPECT_TRUE(is_released(first));
  EXPECT_TRUE(is_released(second));
}

TEST_F(ExecSet, WaitsForExecsThatUseWhatTheLaunchedGraphUses) {
  cargo shared = make_cargo();
  cargo idle = make_cargo();
  graph source = captured_behind_flag(shared);
  graph_exec rival(source);
  auto const sharing = set->add(std::move(source));
  static_cast<void>(set->add(captured_behind_flag(idle)));
  rival.launch(two);
  ASSERT_TRUE(have_started(1));
  set->launch(sharing, three);
  EXPECT_TRUE(stays_false([&] { return cells.load(1) > 1; })) << "the launches overlap";
  rival.launch(two);
  flag.raise();
  EXPECT_TRUE(have_ended(3)) << "the rival waits, too";
}

TEST_F(ExecSet, DoesNotWaitForWhatOnlyAnotherOfItsGraphsShares) {
  cargo shared = make_cargo();
  cargo own = make_cargo();
  graph source = captured_behind_flag(shared);
  graph_exec rival(source);
  static_cast<void>(set->add(std::move(source)));
  auto const other = set->add(captured_behind_flag(own));
  rival.launch(two);
  set->launch(other, three);
  EXPECT_TRUE(have_started(2));
  flag.raise();
}

TEST_F(ExecSet, OfASharingGroupHasOneExecAndOneSlotAndWaitsForOtherStreamsAlone) {
  sharing_group const group;
  pool_options chosen = options(4);
  chosen.group = group;
  block_pool pool = make_pool(chosen);
  std::vector<exec_set::member> members(4);
  int value = 0;
  for (auto& each : members) {
    ++value;
    each = set->add(captured([&](cudaStream_t on) { use(pool, on, value); }));
  }
  EXPECT_EQ(made(), 1);
  EXPECT_EQ(set->stats().execs, 1U);
  for (int i = 0; i < 3; ++i) {
    for (auto const each : members) set->launch(each, two);
  }
  EXPECT_EQ(group.stats().stream_waits, 0U);
  set->launch(members[0], three);
  EXPECT_EQ(group.stats().stream_waits, 1U);
  EXPECT_TRUE(group.stats().unordered.empty());
  sync_all();
  set.reset();
}

TEST_F(ExecSet, GivesGraphsThatAnUpdateCannotChangeAnExecOfTheirOwnAndSaysWhy) {
  auto const add = [this](cudaStream_t on) { must(launch_add(on, cells.data(), 1)); };
  struct row {
    char const* reason;
    std::function<graph()> make;
  };
  auto const with_nodes = [](auto&& put) {
    graph made;
    put(made.get());
    return made;
  };
  std::vector<row> const rows{
      {"types of its nodes differ",
       [&] { return captured([&](auto on) { add(on), add(on), add(on); }); }},
      {"types of its nodes differ",
       [&] {
         return captured([&](auto on) {
           add(on);
           must(cudaMemsetAsync(cells.data(), 1, 4, on));
         });
       }},
      {"its edges differ",
       [&] {
         return with_nodes([&](cudaGraph_t in) {
           for (int i = 0; i < 2; ++i) add_kernel(in, add_call(cells.data(), 1));
         });
       }},
      {"its kernels differ",
       [&] {
         return captured([&](auto on) {
           add(on);
           must(launch_fill(on, cells.data(), 1, 1));
         });
       }},
      {"its launch attributes differ",
       [&] {
         return captured([&](auto on) {
           std::vector const chosen{attribute_of(cudaLaunchAttributePriority, -1)};
           add(on);
           must(add_call(cells.data(), 1).launch(on, 1, chosen));
         });
       }},
      {"whose exec no other graph can use",
       [&] {
         return with_nodes([&](cudaGraph_t in) {
           static_cast<void>(add_conditional_node(in, make_condition(in, 1), cudaGraphCondTypeIf));
         });
       }},
      {"whose exec no other graph can use", [&] {
         return with_nodes([&](cudaGraph_t in) {
           allocation const memory = add_alloc(in);
           add_free(in, memory, memory.node);
         });
       }}};
  for (row const& each : rows) {
    set.emplace();
    auto const before = set->add(captured([&](auto on) { add(on), add(on); }));
    auto const further = set->add(each.make());
    EXPECT_EQ(set->stats().execs, 2U);
    ASSERT_EQ(set->stats().reasons.size(), 1U);
    std::string const reason = set->stats().reasons[0];
    EXPECT_NE(reason.find(each.reason), std::string::npos) << reason;
    for (auto const which : {before, further}) static_cast<void>(launched(which));
    EXPECT_EQ(set->stats().switches, 0U);
  }
}

TEST_F(ExecSet, SharesAmongGraphsThatNoEarlierExecFits) {
  auto const copying = [this](cudaMemcpyKind kind) {
    graph made;
    add_copy(made.get(), cells.data() + 1, cells.data(), sizeof(int), nullptr, kind);
    return made;
  };
  for (int i = 0; i < 4; ++i)
    static_cast<void>(set->add(copying(i % 2 == 0 ? cudaMemcpyDefault : cudaMemcpyHostToHost)));
  EXPECT_EQ(set->stats().execs, 2U);
  ASSERT_EQ(set->stats().reasons.size(), 1U);
  EXPECT_NE(set->stats().reasons[0].find("its parameters cannot be changed so"), std::string::npos);
}

TEST_F(ExecSet, RunsEachGraphWithItsOwnClusters) {
  int const major = compute_capability();
  if (major < 9) GTEST_SKIP() << "the device has no clusters";
  std::vector<std::pair<int, exec_set::member>> members;
  for (int const size : {2, 4, 2, 4})
    members.emplace_back(size, set->add(with_attribute(cudaLaunchAttributeClusterDimension, size)));
  for (auto const& [size, member] : members) EXPECT_EQ(launched(member), size);
  EXPECT_EQ(set->stats().execs, major < 10 ? 2U : 4U);
}

#ifdef ESCROW_TEST_RUNTIME_SIM
TEST_F(ExecSet, SharesNoClustersWhereTheirPreferredSizeCouldDiffer) {
  sim::set_compute_capability(10);
  for (int i = 0; i < 2; ++i) {
    static_cast<void>(set->add(with_attribute(cudaLaunchAttributeClusterDimension, 2)));
    static_cast<void>(set->add(adding(1)));
  }
  sim::set_compute_capability(9);
  EXPECT_EQ(set->stats().execs, 3U);
  ASSERT_EQ(set->stats().reasons.size(), 2U);
  EXPECT_NE(set->stats().reasons[0].find("preferred size CUDA does not tell"), std::string::npos);
}
#endif

TEST_F(ExecSet, RefusesWhatIsNotItsOwnAndLeavesAGraphThatItRefused) {
  exec_set other;
  auto const of_other = other.add(adding(1));
  auto const mine = set->add(adding(2));
  EXPECT_THROW(set->launch(of_other, two), usage_error);
  exec_set const taken = std::move(other);
  graph source = adding(3);
  // NOLINTBEGIN(bugprone-use-after-move,clang-analyzer-cplusplus.Move): that is tested
  EXPECT_THROW(static_cast<void>(other.add(std::move(source))), usage_error);
  EXPECT_THROW(other.launch(of_other, two), usage_error);
  EXPECT_EQ(other.stats().members + other.held().slots, 0U);
  auto const third = set->add(std::move(source));
  EXPECT_THROW(static_cast<void>(set->add(std::move(source))), usage_error);
  // NOLINTEND(bugprone-use-after-move,clang-analyzer-cplusplus.Move)
  test::capture open{one, cudaStreamCaptureModeThreadLocal};
  EXPECT_THROW(set->launch(mine, one), cuda_error);
  EXPECT_EQ(open.end(), cudaErrorStreamCaptureInvalidated);
  static_cast<void>(cudaGetLastError());
  EXPECT_EQ(launched(mine), 2);
  EXPECT_EQ(launched(third), 3);
}

class ExecSetOfTwoDevices : public world_of_two_devices {};

TEST_F(ExecSetOfTwoDevices, HasAnExecForEachAndLaunchesOnEither) {
  exec_set set;
  auto const adding = [this](cudaStream_t on, int value) {
    return escrow::capture(stream_ref(on), [&](stream_ref its) {
      must(launch_add(its.get(), cells.data(), value));
      worker->retire(its, std::make_unique<int>(value));
    });
  };
  std::vector<exec_set::member> members;
  for (int const value : {1, 10}) {
    members.push_back(set.add(adding(one, value)));
    device_scope const there(1);
    members.push_back(set.add(adding(elsewhere, 100 * value)));
  }
  EXPECT_EQ(set.stats().execs, 2U);
  for (auto const each : members) {
    set.launch(each, two);
    set.launch(each, elsewhere);
  }
  sync(two);
  sync(elsewhere);
  EXPECT_EQ(cells.load(), 2222);
}

}  // namespace
}  // namespace escrow::test
