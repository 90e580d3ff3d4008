// SPDX-License-Identifier: Apache-2.0
// What owns the memory, the callable or the event of a node is kept as long as a graph has the
// node: by the graph, its clones, execs and their launches. hoist() of it, and what it costs.
#include "nodes_world.hpp"

namespace escrow::test {
namespace {

/// Adds a node that alone keeps an owner of its argument.
class NodeOwner : public nodes_world, public testing::WithParamInterface<char const*> {
 protected:
  node add_it(graph_builder_ref const& at) {
    constexpr memset_config one_byte{.width = 1};
    auto const what = std::string(GetParam());
    auto const event_of_one = [this] {
      return std::shared_ptr<event const>(new event, [its = fate](event const* made) {
        delete made;
        probe const ends(its);
      });
    };
    if (what == "SharedArgument") return add_owned(at, fate);
    if (what == "UniqueArgument") {
      std::unique_ptr<int, tells> mine(cells.data(), tells{fate});
      node const made = at.add(kernel_node(add, {}, std::move(mine), 1));
      EXPECT_EQ(mine, nullptr);  // NOLINT(bugprone-use-after-move)
      return made;
    }
    if (what == "Callable") return at.add(host_node([mine = std::make_shared<probe>(fate)] {}));
    if (what == "MemsetTo") return at.add(memset_node(shared(fate), one_byte));
    // A copy from host memory to host memory would make the launch wait for it.
    if (what == "MemcpyTo") return at.add(memcpy_node(shared(fate), device.data(), 4));
    if (what == "MemcpyFrom") return at.add(memcpy_node(device.data(), shared(fate), 4));
    if (what == "RecordedEvent") return at.add(record_node(event_of_one()));
    if (what == "AwaitedEvent") return at.add(wait_node(event_of_one()));
    throw std::runtime_error("no such owner");
  }

  fate_ptr fate = make_fate();
};

TEST_P(NodeOwner, IsKeptByAGraphThatWasNeverInstantiated) {
  add_it(*built);
  EXPECT_TRUE(is_kept(fate));
  EXPECT_EQ(owners_held(), 1U);
  built.reset();
  EXPECT_TRUE(is_released(fate));
}

TEST_P(NodeOwner, IsKeptByTheExecAndUntilItsLastLaunchIsDone) {
  add_it(hold_up_at(*built));
  std::optional<graph_exec> exec(*built);
  EXPECT_TRUE(exec->is_bare());
  EXPECT_EQ(exec->held().owners, 1U);
  built.reset();
  EXPECT_TRUE(is_kept(fate));
  exec->launch(two);
  exec.reset();
  EXPECT_TRUE(stays_kept(fate));
  flag.raise();
  EXPECT_TRUE(is_released(fate));
}

TEST_P(NodeOwner, IsKeptByClonesAndParentsAndTheirExecs) {
  add_it(*built);
  std::optional<graph> twin(built->clone());
  EXPECT_EQ(twin->held().owners, 1U);
  std::optional<graph> parent(std::in_place, *worker);
  static_cast<void>(build(*parent).add(child_node(*built)));
  built.reset();
  std::optional<graph_exec> of_twin(*twin);
  twin.reset();
  run(*of_twin);
  std::optional<graph_exec> of_parent(*parent);
  EXPECT_TRUE(of_twin->is_bare());
  EXPECT_TRUE(of_parent->is_bare());
  of_twin.reset();
  parent.reset();
  run(*of_parent);
  EXPECT_TRUE(is_kept(fate));
  of_parent.reset();
  EXPECT_TRUE(is_released(fate));
}

TEST_P(NodeOwner, IsKeptByPlainClonesAndExecsWheneverTheHandleWasGivenOut) {
  if (std::string(GetParam()) != "Callable") static_cast<void>(built->get());
  add_it(*built);
  owned_graph twin = clone(built->get());
  owned_graph detached(built->detach());
  built.reset();
  owned_exec exec = instantiate(twin);
  twin.reset();
  must(cudaGraphLaunch(exec, two));
  sync(two);
  exec.reset();
  EXPECT_TRUE(is_kept(fate));
  detached.reset();
  EXPECT_TRUE(is_released(fate));
}

INSTANTIATE_TEST_SUITE_P(Each, NodeOwner,
                         testing::Values("SharedArgument", "UniqueArgument", "Callable", "MemsetTo",
                                         "MemcpyTo", "MemcpyFrom", "RecordedEvent", "AwaitedEvent"),
                         [](auto const& chosen) { return std::string(chosen.param); });

class NodeOwners : public nodes_world {
 protected:
  fate_ptr first = make_fate();
  fate_ptr second = make_fate();
};

TEST_F(NodeOwners, OfABodyAreKeptForTheGraphAlsoWhatIsCapturedIntoIt) {
  condition const always = build(*built).make_condition(1);
  body_graph const body = build(*built).add(if_node(always)).body();
  node const added = add_owned(body, first);
  cudaGraphNode_t const after = added.get();
  capture_into(
      body.get(),
      [&](cudaStream_t on) {
        retire(on, second);
        must(launch_add(on, cells.data(), 1));
      },
      &after, 1);
  EXPECT_EQ(nodes_in(body).size(), 2U);
  EXPECT_EQ(edges_in(body).size(), 1U);
  std::optional<graph_exec> exec(*built);
  EXPECT_TRUE(exec->is_bare()) << "its bodies are known";
  built.reset();
  run(*exec);
  EXPECT_EQ(cells.load(), 2);
  EXPECT_TRUE(is_kept(first));
  EXPECT_TRUE(is_kept(second));
  exec.reset();
}

TEST_F(NodeOwners, InSeveralPlacesAreCountedOnce) {
  add_owned(*built, first);
  node const removed = add_owned(*built, second);
  build(*built).add(child_node(built->clone()));
  EXPECT_EQ(owners_held(), 2U);
  removed.destroy();
  EXPECT_EQ(owners_held(), 2U) << "the copy has it";
  EXPECT_EQ(graph_exec(*built).held().owners, 2U);
}

TEST_F(NodeOwners, AreRefusedOnceTheirDeleterWasStopped) {
  add_owned(*built, first);
  worker->stop();
  node const plain = add_to(*built, 0);
  graph_exec exec(*built);
  auto const kind = [&] { return kernel_node(add, {}, shared(second), 1); };
  expect_refused([&] { build(*built).add(kind()); }, "graph_builder_ref::add", "was stopped");
  expect_refused([&] { plain.set(kind()); }, "node::set", "was stopped");
  expect_refused([&] { escrow::set(exec, plain, kind()); }, "set", "was stopped");
  EXPECT_EQ(second->times(), 3);
  add_to(*built, 0);  // has no owner
  EXPECT_TRUE(is_out(first));
  exec = graph_exec(graph(*worker));
  built.reset();
  EXPECT_TRUE(is_released(first)) << "it was given before";
}

TEST_F(NodeOwners, AreTakenOffByHoist) {
  node const added = add_owned(*built, first);
  node const other = add_owned(*built, second);
  hoisted taken = hoist(built->get());
  added.destroy();
  fate_ptr const third = make_fate();
  other.set(kernel_node(add, {}, shared(third), 2));
  EXPECT_TRUE(is_kept(first)) << "what was hoisted keeps it";
  taken.release();
  EXPECT_TRUE(is_released(first));
  EXPECT_TRUE(is_released(second));
  EXPECT_TRUE(is_kept(third));
  graph const twin = built->clone();
  built.reset();
  sole_node(twin).destroy();
  EXPECT_EQ(twin.held().owners, 0U);
  EXPECT_TRUE(is_released(third));
}

TEST_F(NodeOwners, OfExecsMadeAfterAHoistByHandleAreTheirOwn) {
  node const one_node = add_owned(*built, first);
  node const other_node = add_to(one_node, 1);
  { graph_exec const before(*built); }
  hoist(built->get()).release();
  { graph_exec const after(*built); }
  EXPECT_TRUE(is_released(first));
  // What kept the first owner is used again, for another.
  for (int i = 0; i < 64; ++i) {
    fate_ptr const fate = make_fate();
    graph_exec exec(*built);
    escrow::set(exec, other_node, kernel_node(add, {}, shared(fate, 1), 1));
    escrow::set(exec, one_node, kernel_node(add, {}, cells.data(), 1));
    EXPECT_TRUE(is_kept(fate)) << "that of the other node";
  }
}

TEST_F(NodeOwners, OfANodeDestroyedByAPlainCallAreReleasedWithTheGraphWhichCanBeCloned) {
  node const kept = add_owned(*built, first);
  must(cudaGraphDestroyNode(add_owned(kept, second).get()));
  for (int i = 0; i < 2; ++i) EXPECT_EQ(nodes_in(built->clone()).size(), 1U);
  graph parent(*worker);
  EXPECT_NO_THROW(parent.add_child(*built));
  run(*built);
  fate_ptr const third = make_fate();
  add_owned(*built, third);  // it may have the handle of the destroyed node
  graph_exec exec(*built);
  built.reset();
  run(exec);
  EXPECT_TRUE(is_kept(first));
  EXPECT_TRUE(is_kept(third));
  EXPECT_EQ(cells.load(), 3);
  parent = graph(*worker);
  exec = graph_exec(parent);
  EXPECT_TRUE(is_released(first));
  EXPECT_TRUE(is_released(second));
  EXPECT_TRUE(is_released(third));
}

TEST_F(NodeOwners, OfANodeDestroyedByAPlainCallGoWhenANewNodeHasItsHandle) {
  std::vector<fate_ptr> fates;
  for (int i = 0; i < 20; ++i) {
    fates.push_back(make_fate());
    must(cudaGraphDestroyNode(add_owned(*built, fates.back()).get()));
  }
  add_owned(*built, first);
  run(*built);
  for (fate_ptr const& each : fates) EXPECT_TRUE(is_released(each));
  EXPECT_TRUE(is_kept(first));
}

#ifdef ESCROW_TEST_RUNTIME_SIM
TEST_F(NodeOwners, AreInOneUserObjectWheneverTheHandleIsAskedFor) {
  for (bool const handle_is_first : {false, true}) {
    graph source(*worker);
    if (handle_is_first) static_cast<void>(source.get());
    auto const before = sim::calls("cudaUserObjectCreate");
    for (int i = 0; i < 64; ++i) add_owned(source, make_fate());
    static_cast<void>(source.get());
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(graph_exec(source).is_bare());
    EXPECT_EQ(sim::calls("cudaUserObjectCreate") - before, 1u) << handle_is_first;
  }
}
#endif

}  // namespace
}  // namespace escrow::test
