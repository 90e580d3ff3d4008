// SPDX-License-Identifier: Apache-2.0
// What copies of graphs inherit: clones, child graphs, and copies of these, also of what was
// hoisted before.
#include <escrow/internal/graph_query.hpp>
#include <escrow/nodes.hpp>

#include "pool_world.hpp"

namespace escrow::test {
namespace {

class Copies : public sharing_world {
 protected:
  /// Hoists the graph; what it held is released at the end of the test.
  void hoist_now(graph_ref source) { held_.push_back(hoist(source)); }
  /// A graph that was captured with a use of the pool, and then hoisted.
  [[nodiscard]] graph hoisted_use() {
    graph made = captured_use_of(*pool);
    hoist_now(made);
    return made;
  }
  [[nodiscard]] static cudaGraph_t child_of(cudaGraphNode_t node) {
    cudaGraph_t child = nullptr;
    must(cudaGraphChildGraphNodeGetGraph(node, &child));
    return child;
  }
  /// A capture into the copy must not get the slot that its own nodes use.
  void expect_not_reused_in(cudaGraph_t copy, char const* what) {
    int const before = made();
    capture_into(copy, [&](cudaStream_t on) { use(*pool, on); });
    EXPECT_EQ(made(), before + 1) << what << ": both parts may run concurrently";
  }
  void TearDown() override {
    sync_all();
    for (hoisted& each : held_) each.release();
    held_.clear();
    sharing_world::TearDown();
  }

 private:
  std::vector<hoisted> held_;
};

TEST_F(Copies, OfWhatWasHoistedDoNotGetTheSlotsThatTheyUse) {
  graph const source = hoisted_use();
  graph const clone = source.clone();
  expect_not_reused_in(clone.get(), "a clone");
  graph const source_again = hoisted_use();
  graph const of_clone = source_again.clone().clone();
  expect_not_reused_in(of_clone.get(), "a clone of a clone");
  graph const inner = hoisted_use();
  graph parent;
  expect_not_reused_in(child_of(parent.add_child(inner)), "a child graph");
  graph middle;
  middle.add_child(hoisted_use());
  graph outer;
  cudaGraph_t const copied = child_of(outer.add_child(middle));
  std::vector<cudaGraphNode_t> const nodes = nodes_of(copied);
  ASSERT_EQ(nodes.size(), 1U);
  expect_not_reused_in(child_of(nodes.front()), "a child graph of a child graph");
}

TEST_F(Copies, OfWhatWasHoistedStayKnownWhenTheyAreDetachedOrTakenOver) {
  graph clone = hoisted_use().clone();
  graph const taken_over(clone.detach());
  expect_not_reused_in(taken_over.get(), "taken over by its handle");
  graph given_up = hoisted_use();
  cudaGraph_t const native = given_up.detach();
  expect_not_reused_in(native, "detached");
  must(cudaGraphDestroy(native));
}

TEST_F(Copies, OfAHoistedChildGraphDoNotGetTheSlotsThatTheyUse) {
  graph parent;
  parent.add_child(captured_use_of(*pool));
  hoist_now(parent);
  graph const clone = parent.clone();
  expect_not_reused_in(child_of(nodes_of(clone.get()).front()), "a clone's child graph");
}

TEST_F(Copies, OfWhatWasHoistedAreRefusedOnTwoBranches) {
  auto const expect_refused = [](graph const& copied, char const* what) {
    graph parent;
    for (int i = 0; i < 2; ++i) static_cast<void>(build(parent).add(child_node(copied)));
    expect_error<usage_error>([&] { graph_exec const refused(parent); },
                              {"graph_exec::graph_exec", "batches", "single line"});
    EXPECT_THROW(static_cast<void>(hoist(parent)), usage_error) << what;
    graph line;
    for (int i = 0; i < 2; ++i) line.add_child(copied);
    graph_exec const serial(line);
  };
  graph const hoisted_graph = hoisted_use();
  expect_refused(hoisted_graph, "a hoisted graph");
  expect_refused(hoisted_graph.clone(), "its clone");
  expect_refused(hoisted_graph.clone().clone(), "its clone's clone");
  graph parent;
  parent.add_child(hoisted_graph);
  expect_refused(parent, "what has it as a child graph");
}

TEST_F(Copies, OfWhatWasHoistedHoldNothingThatCouldBeHoisted) {
  graph const source = hoisted_use();
  graph const clone = source.clone();
  graph parent;
  parent.add_child(source);
  for (graph const* const each : {&clone, &std::as_const(parent)}) {
    EXPECT_EQ(each->held().slots, 0U);
    expect_error<usage_error>([&] { return hoist(*each); },
                              {"hoist", "hoisted before", "keep the first"});
  }
}

TEST_F(Copies, OfWhatWasHoistedWithoutTheGroupMayRunBesideIt) {
  block_pool other = make_pool(options(8));
  graph const source = captured([&](cudaStream_t on) { use(other, on); });
  hoist_now(source);
  graph parent;
  for (graph const& each : {source.clone(), captured_use_of(*pool)}) {
    static_cast<void>(build(parent).add(child_node(each)));
  }
  graph_exec const allowed(parent);
}

TEST_F(Copies, OfAMemberOfAnExecSetAreMadeBeforeItIsAdded) {
  exec_set set;
  graph source = captured_use_of(*pool);
  graph const clone = source.clone();
  exec_set::member const added = set.add(std::move(source));
  set.launch(added, two);
  graph parent;
  for (int i = 0; i < 2; ++i) static_cast<void>(build(parent).add(child_node(clone)));
  EXPECT_THROW(graph_exec const refused(parent), usage_error);
  EXPECT_EQ(clone.held().slots, 1U);
}

TEST_F(Copies, HoldWhatWasCapturedIntoAHoistedGraphSince) {
  graph const source = hoisted_use();
  capture_into(source.get(), [&](cudaStream_t on) { use(*pool, on); });
  graph const clone = source.clone();
  EXPECT_EQ(clone.held().slots, 1U) << "of the second capture";
  expect_not_reused_in(clone.get(), "a clone");
}

TEST_F(Copies, AreOfTheDeviceOfTheOriginal) {
  if (!has_two_devices()) GTEST_SKIP() << "needs two devices";
  graph const source;
  std::optional<graph> clone;
  {
    device_scope const there(1);
    clone.emplace(source.clone());
  }
  fate_ptr const fate = make_fate();
  static_cast<void>(build(*clone).add(host_node([mine = std::make_shared<probe>(fate)] {})));
  clone.reset();
  ASSERT_TRUE(fate->wait());
  EXPECT_EQ(fate->device, 0);
}

}  // namespace
}  // namespace escrow::test
