// SPDX-License-Identifier: Apache-2.0
// Nodes that are read back: what they are, as kinds that are added again, with what they keep.
#include "graph_nodes.hpp"
#include "nodes_world.hpp"

namespace escrow::test {
namespace {

class NodeKind : public nodes_world {
 protected:
  [[nodiscard]] int cell_after(graph const& of, std::size_t cell) {
    cells.store(cell, 0);
    graph_exec exec(of);
    run(exec);
    return cells.load(cell);
  }

  fate_ptr fate = make_fate();
};

TEST_F(NodeKind, OfAKernelIsAddedAgainWithItsArgumentsAndOwner) {
  std::optional<any_kind> read(add_owned(*built, fate, 5, 1).kind());
  EXPECT_EQ(read->type(), cudaGraphNodeTypeKernel);
  EXPECT_TRUE(read->has_owner());
  EXPECT_EQ(read->params().kernel.gridDim.x, 1U);
  built.reset();
  std::optional<graph> other(std::in_place, *worker);
  build(*other).add(*read).add(*read);
  EXPECT_EQ(cell_after(*other, 1), 10);
  read.reset();
  EXPECT_TRUE(is_kept(fate));
  EXPECT_EQ(cell_after(*other, 1), 10);
  other.reset();
  EXPECT_TRUE(is_released(fate));
}

TEST_F(NodeKind, KeepsTheOwnerWithoutAnyGraph) {
  std::optional<any_kind> read(add_owned(*built, fate).kind());
  built.reset();
  EXPECT_TRUE(is_kept(fate));
  std::optional<any_kind> copied(*read);
  read.reset();
  EXPECT_TRUE(is_kept(fate));
  copied.reset();
  EXPECT_TRUE(is_released(fate));
}

TEST_F(NodeKind, ChangesNodesAndExecs) {
  node const from = add_owned(*built, fate, 7);
  any_kind const read = from.kind();
  graph other(*worker);
  fate_ptr const before = make_fate();
  node const changed = add_owned(other, before, 1);
  graph_exec exec(other);
  escrow::set(exec, changed, read);
  cells.store(0, 0);
  run(exec);
  EXPECT_EQ(cells.load(), 7);
  changed.set(read);
  EXPECT_EQ(cell_after(other, 0), 7);
  changed.set(kernel_node(add, {}, cells.data(), 2));
  EXPECT_FALSE(changed.kind().has_owner());
}

TEST_F(NodeKind, OfFillsCopiesCallablesAndEvents) {
  auto const on_device = std::shared_ptr<int>(device.data(), tells{fate});
  int calls = 0;
  auto const recorded = std::make_shared<event const>();
  node const filled =
      build(*built).add(memset_node(on_device, {.value = 9, .element_bytes = 4, .width = 2}));
  node const copied = filled.add(memcpy_node(cells.data(), on_device, 2 * sizeof(int)));
  node const called = copied.add(host_node([&calls, kept = on_device] { ++calls; }));
  node const record = called.add(record_node(recorded));
  node const waits = record.add(wait_node(recorded));
  graph other(*worker);
  graph_builder_ref at = build(other);
  for (node const& each : {filled, copied, called, record, waits}) {
    any_kind const read = each.kind();
    EXPECT_TRUE(read.has_owner());
    at = at.add(read);
  }
  built.reset();
  EXPECT_EQ(recorded.use_count(), 3) << "of each node one";
  EXPECT_EQ(cell_after(other, 1), 9);
  EXPECT_EQ(calls, 1);
}

TEST_F(NodeKind, OfAnEventHasWhatItsMakerKnew) {
  node const record = build(*built).add(record_node(event::shared(cudaEventDefault)));
  graph other(*worker);
  node const again = build(other).add(record.kind());
  built.reset();
  cudaEvent_t handle = nullptr;
  must(cudaGraphEventRecordNodeGetEvent(again.get(), &handle));
  EXPECT_EQ(event::from(handle)->flags(), cudaEventDefault);
  again.destroy();
  worker->drain();
  expect_refused([handle] { return event::from(handle); }, "event::from", "no event::shared()");
}

TEST_F(NodeKind, OfACapturedKernelHasItsArgumentsAndNoOwner) {
  std::optional<graph> plain(
      captured([&](cudaStream_t on) { must(launch_add(on, cells.data(), 3)); }));
  any_kind const read = sole_node(*plain).kind();
  EXPECT_FALSE(read.has_owner());
  plain.reset();
  build(*built).add(read);
  EXPECT_EQ(cell_after(*built, 0), 3);
}

TEST_F(NodeKind, HasTheClustersOfItsNode) {
  if (compute_capability() < 9) GTEST_SKIP() << "the device has no clusters";
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {2, 1, 1};
  node const made =
      build(*built).add(kernel_node(function_of<int*>(kernel_id::cluster_size),
                                    {.grid = {8}, .attributes = {cluster}}, cells.data()));
  graph other(*worker);
  build(other).add(made.kind());
  EXPECT_EQ(cell_after(other, 0), 2);
}

TEST_F(NodeKind, GivesANodeItsAttributesBack) {
  if (compute_capability() < 9) GTEST_SKIP() << "the device has no clusters";
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {2, 1, 1};
  auto* const size = function_of<int*>(kernel_id::cluster_size);
  node const changed = build(*built).add(kernel_node(size, {.grid = {3}}, cells.data()));
  any_kind const before = changed.kind();
  changed.set(kernel_node(size, {.grid = {8}, .attributes = {cluster}}, cells.data()));
  any_kind const between = changed.kind();
  graph_exec exec(*built);
  escrow::set(exec, changed, between);
  changed.set(before);
  EXPECT_EQ(cell_after(*built, 0), 1);
  expect_refused([&] { escrow::set(exec, changed, between); }, "set", "has launch attributes");
}

// What was moved into a node may be written by a launch.
TEST_F(NodeKind, OrdersTheExecsOfItsGraphAsItsNodeDid) {
  std::unique_ptr<int, tells> mine(cells.data() + 1, tells{fate});
  node const begun = build(*built).add(kernel_node(add, {}, std::move(mine), 1));
  hold_up_at(begun);
  begun.set(begun.kind());
  graph_exec one_exec(*built);
  graph_exec other_exec(*built);
  one_exec.launch(two);
  ASSERT_TRUE(have_started(1));
  other_exec.launch(three);
  EXPECT_TRUE(stays_false([&] { return cells.load(1) != 1; }));
  flag.raise();
  sync_all();
  EXPECT_EQ(cells.load(1), 2);
}

TEST_F(NodeKind, MayBeUsedAgainAfterAMove) {
  any_kind read = add_to(*built, 0).kind();
  build(*built).add(std::move(read));
  build(*built).add(read);  // NOLINT(bugprone-use-after-move): there is no move
  EXPECT_EQ(cell_after(*built, 0), 3);
}

TEST_F(NodeKind, IsRefusedWhereTheGraphMayKeepSomethingForTheNode) {
  graph const outer(*worker);
  add_owned(*built, fate);
  node const child = build(outer).add(child_node(*built));
  node const inside = build(outer).node_of(nodes_of(embedded_in(child))[0]);
  constexpr char const* more = "the graph keeps something, perhaps for this node";
  expect_refused([&] { return inside.kind(); }, "node::kind", more);
  graph const launched = captured([&](cudaStream_t on) {
    launch(on, kernel(add), {.deleter = worker.get()}, shared(fate), 1);
  });
  expect_refused([&] { return sole_node(launched).kind(); }, "node::kind", more);
  graph const conditional(*worker);
  auto const branch = build(conditional).add(if_node(build(conditional).make_condition(1)));
  node const in_body = add_to(branch.body(), 0);
  graph_exec exec(conditional);
  branch.destroy();
  for (auto const& refused : std::vector<std::function<void()>>{
           [&] { static_cast<void>(in_body.kind()); },
           [&] { escrow::set(exec, in_body, kernel_node(add, {}, cells.data(), 1)); },
           [&] { set_enabled(exec, in_body, false); }})
    EXPECT_THROW(refused(), usage_error);
}

TEST_F(NodeKind, IsRefusedOfNodesThatHaveNone) {
  node const first = add_to(*built, 0);
  node const child = first.add(child_node(graph(*worker)));
  condition const always = build(*built).make_condition(1);
  node const branch = child.add(if_node(always));
  for (node const& each : {child, branch, first.join()}) {
    expect_refused([&] { return each.kind(); }, "node::kind",
                   "the node is a child graph, empty, conditional, or allocates or frees");
  }
  expect_refused([&] { return node().kind(); }, "node::kind", "is empty");
}

TEST_F(NodeKind, KernelsOfALibraryAreFoundByTheirHandles) {
  std::optional<library> loaded(library::load(library_code()));
  std::optional<kernel> found(loaded->find("library_add"));
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast): as CUDA has it
  auto const handle = static_cast<cudaKernel_t>(const_cast<void*>(found->get()));
  std::optional<kernel> same(kernel::from(handle));
  EXPECT_EQ(*same, *found);
  EXPECT_EQ(same->library(), found->library());
  loaded.reset();
  found.reset();
  build(*built).add(kernel_node(*same, {}, cells.data(), 4));
  same.reset();
  EXPECT_EQ(cell_after(*built, 0), 4);
  same.emplace(kernel::from(handle));  // the graph keeps the library
  same.reset();
  built.reset();
  worker->drain();
  expect_refused([&] { return kernel::from(handle); }, "kernel::from", "no library::find()");
}

}  // namespace
}  // namespace escrow::test
