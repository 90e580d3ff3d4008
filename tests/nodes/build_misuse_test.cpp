// SPDX-License-Identifier: Apache-2.0
// Calls that must not be made: the error names the call and the problem, and nothing was added or
// changed. Kinds that cannot be, places and nodes of other graphs, of bodies, and of graphs that
// were destroyed, detached or moved from.
#include <limits>

#include "nodes_world.hpp"

namespace escrow::test {
namespace {

constexpr memset_config one_byte{.width = 1};

class BuildMisuse : public nodes_world {
 protected:
  /// Calls `visit` with a node's kind of each sort that can be changed.
  void for_each_kind(auto visit) {
    int* const data = device.data();
    visit(kernel_node(add, {}, data, 1));
    visit(kernel_node(kernel(add), {}, data, 1));
    visit(memset_node(data, one_byte));
    visit(memcpy_node(data, data + 1, 4));
    visit(host_node([] {}));
    visit(record_node(shared_event));
    visit(record_node(shared_event->ref()));
    visit(wait_node(shared_event));
    visit(wait_node(shared_event->ref()));
  }

  std::shared_ptr<event const> const shared_event = std::make_shared<event>();
};

TEST_F(BuildMisuse, AGraphIsNoPartOfItself) {
  node const first = add_to(*built, 0);
  graph const other(*worker);
  node const child = first.add(child_node(other));
  conditional_node const branch = child.add(if_node(build(*built).make_condition(1)));
  constexpr char const* itself = "`child` is the graph that it would become a part of";
  test::expect_refused(
      {{"graph_builder_ref::add", {itself}, [&] { first.add(child_node(*built)); }},
       {"graph_builder_ref::add",
        {itself},
        [&] { static_cast<void>(branch.body().add(child_node(*built))); }},
       {"node::set", {itself}, [&] { child.set(child_node(*built)); }},
       {"graph::add_child", {itself}, [&] { built->add_child(*built); }}});
  graph twice(*worker);
  add_to(twice, 0).add(child_node(twice.clone()));
}

TEST_F(BuildMisuse, AKindThatCannotBeIsRefused) {
  int* const null = nullptr;
  int* const data = device.data();
  auto const memset_of = [data](memset_config const& config) {
    return [=] { static_cast<void>(memset_node(data, config)); };
  };
  auto const kernel_of = [this](launch_config const& config) {
    return [=, this] { static_cast<void>(kernel_node(add, config, cells.data(), 1)); };
  };
  launch_config with_attributes;
  with_attributes.attributes.push_back(
      attribute_of(cudaLaunchAttributeDeviceUpdatableKernelNode, 1));
  launch_config with_deleter;
  with_deleter.deleter = worker.get();
  kernel from(add);
  kernel const taken = std::move(from);
  std::shared_ptr<event const> const no_event;
  auto const empty_event = std::make_shared<event>(event::none());
  condition const ours = build(*built).make_condition(1);
  test::expect_refused(
      {{"memset_node", {"`value`"}, memset_of({.value = 0x100, .width = 1})},
       {"memset_node", {"`value`"}, memset_of({.value = 0x10000, .element_bytes = 2, .width = 1})},
       {"memset_node", {"`element_bytes`"}, memset_of({.element_bytes = 0, .width = 1})},
       {"memset_node", {"`element_bytes`"}, memset_of({.element_bytes = 3, .width = 1})},
       {"memset_node", {"`element_bytes`"}, memset_of({.element_bytes = 8, .width = 1})},
       {"memset_node",
        {"`pitch`"},
        memset_of({.element_bytes = 4, .width = 2, .height = 2, .pitch = 7})},
       {"memset_node", {"`pitch`"}, memset_of({.width = 2, .height = 2})},
       {"memset_node", {"width"}, memset_of({.width = 0})},
       {"memset_node", {"rows"}, memset_of({.width = 1, .height = 0})},
       {"memset_node", {"destination"}, [&] { return memset_node(null, one_byte); }},
       {"memcpy_node", {"`bytes`"}, [&] { return memcpy_node(data, data + 1, 0); }},
       {"memcpy_node", {"address"}, [&] { return memcpy_node(null, data, 4); }},
       {"memcpy_node", {"address"}, [&] { return memcpy_node(data, null, 4); }},
       {"alloc_node", {"`bytes`"}, [] { return alloc_node(0); }},
       {"free_node", {"`address`"}, [] { return free_node(nullptr); }},
       {"kernel_node",
        {"the kernel is null"},
        [&] { return kernel_node(from, {}); }},  // NOLINT(bugprone-use-after-move)
       {"kernel_node", {"an attribute of `config`"}, kernel_of(with_attributes)},
       {"kernel_node", {"deleter"}, kernel_of(with_deleter)},
       {"kernel_node", {"`shared_bytes`"}, kernel_of({.shared_bytes = std::size_t{1} << 32})},
       {"record_node", {"the event is null"}, [&] { return record_node(no_event); }},
       {"record_node", {"the event is null"}, [&] { return record_node(empty_event); }},
       {"record_node", {"the event is null"}, [] { return record_node(event_ref(cudaEvent_t{})); }},
       {"wait_node", {"the event is null"}, [&] { return wait_node(no_event); }},
       {"wait_node", {"the event is null"}, [&] { return wait_node(empty_event); }},
       {"switch_node", {"`bodies`"}, [&] { return switch_node(ours, 0); }}});
}

TEST_F(BuildMisuse, ParametersOfAnotherKindAreRefusedAndChangeNothing) {
  node const filled =
      build(*built).add(memset_node(device.data(), {.value = 1, .element_bytes = 4, .width = 1}));
  graph_exec exec(*built);
  for_each_kind([&](auto kind) {
    if (type_of(build(graph(*worker)).add(kind)) == cudaGraphNodeTypeMemset) return;
    expect_error([&] { filled.set(kind); }, cudaErrorInvalidValue);
    EXPECT_THROW(escrow::set(exec, filled, kind), cuda_error);
  });
  run(exec);
  EXPECT_EQ(device.read()[0], 1);
}

TEST_F(BuildMisuse, AConditionOfAnotherGraphOrBodyIsRefused) {
  graph other(*worker);
  condition const of_other = build(other).make_condition(1);
  std::optional<graph> destroyed(std::in_place, *worker);
  condition const of_destroyed = build(*destroyed).make_condition(1);
  destroyed.reset();
  condition const ours = build(*built).make_condition(1);
  body_graph const body = build(*built).add(if_node(ours)).body();
  condition const of_body = body.make_condition(1);
  node const after = build(*built).join();
  struct wrong {
    graph_builder_ref at;
    condition const* tested;
  };
  for (wrong const& each : {wrong{*built, &of_other}, wrong{*built, &of_body}, wrong{body, &ours},
                            wrong{body, &of_other}, wrong{after, &of_body}}) {
    constexpr char const* problem = "the condition is of another graph, or of another body";
    auto const refused = [&](conditional_kind const& kind) {
      expect_refused([&] { return each.at.add(kind); }, kind.name, problem);
    };
    refused(if_node(*each.tested));
    refused(if_else_node(*each.tested));
    refused(while_node(*each.tested));
    refused(switch_node(*each.tested, 2));
  }
  EXPECT_TRUE(nodes_in(body).empty());
  EXPECT_EQ(nodes_in(*built).size(), 2U);
  graph const next(*worker);  // if it has the handle that the other had, CUDA refuses
  EXPECT_ANY_THROW(build(next).add(if_node(of_destroyed)));
  EXPECT_TRUE(nodes_in(next).empty());
}

TEST_F(BuildMisuse, AConditionHasOneNodeUntilThatIsDestroyed) {
  condition const tested = build(*built).make_condition(1);
  conditional_node const first = build(*built).add(if_node(tested));
  constexpr char const* problem = "the condition has a node already";
  expect_refused([&] { build(*built).add(while_node(tested)); }, "while_node", problem);
  body_graph const body = first.body();
  condition const inner = body.make_condition(1);
  body.add(if_node(inner));
  expect_refused([&] { body.add(switch_node(inner, 2)); }, "switch_node", problem);
  first.destroy();
  build(*built).add(if_node(tested)).body().add(if_node(inner));
  EXPECT_EQ(nodes_in(*built).size(), 1U);
}

TEST_F(BuildMisuse, ANodeOfAnotherGraphOrBodyIsNotWaitedFor) {
  node of_destroyed;
  built.reset();
  {
    graph destroyed(*worker);
    of_destroyed = add_to(destroyed, 0);
  }
  built.emplace(*worker);  // it may have the handle that the other had
  graph other(*worker);
  condition const ours = build(*built).make_condition(1);
  conditional_node const made = build(*built).add(if_node(ours));
  constexpr char const* join = "graph_builder_ref::join";
  for (node const& each : {add_to(other, 0), add_to(made.body(), 0), of_destroyed, node()}) {
    expect_refused([&] { return made.join({each}); }, join, "`others`");
    expect_refused([&] { return build(*built).join({made, each}); }, join, "`others`");
    expect_refused([&] { made.after(each); }, "node::after", "`other`");
  }
  EXPECT_EQ(nodes_in(*built).size(), 1U);
  EXPECT_TRUE(edges_in(*built).empty());
}

TEST_F(BuildMisuse, AnExecTakesNodesOfTheGraphThatItWasMadeOfAlone) {
  graph other(*worker);
  node const of_other = add_to(other, 0);
  node const ours = add_to(*built, 0);
  graph const twin = built->clone();
  graph_exec exec(*built);
  graph_exec of_handle(built->get());
  graph_exec of_twin(twin);
  auto const refuses = [&](graph_exec& it, node const& changed, char const* problem) {
    for_each_kind([&](auto kind) {
      expect_refused([&] { escrow::set(it, changed, kind); }, "set", problem);
    });
  };
  constexpr char const* foreign = "the node is not of the graph that the exec was created from";
  refuses(exec, of_other, foreign);
  refuses(exec, node(), "the node, or place, is empty");
  refuses(of_handle, ours, foreign);
  refuses(of_twin, ours, foreign);
  graph_exec moved_to = std::move(exec);
  refuses(exec, ours, "moved from");  // NOLINT(bugprone-use-after-move)
  escrow::set(moved_to, ours, kernel_node(add, {}, cells.data(), 2));
  owned_graph const detached(built->detach());
  refuses(moved_to, ours, foreign);
  built.reset();
  refuses(moved_to, ours, foreign);
  run(moved_to);
  EXPECT_EQ(cells.load(), 2);
}

/// Places in graphs that are not there any more, and their nodes.
class MissingGraph : public BuildMisuse {
 protected:
  static constexpr char const* was_destroyed = "the graph was destroyed, moved from or detached";

  /// Expects that nothing can be added.
  void expect_no_place(graph_builder_ref const& at, char const* is_missing = was_destroyed) {
    graph const other(*worker);
    condition const of_other = build(other).make_condition(1);
    constexpr char const* add_call = "graph_builder_ref::add";
    for_each_kind([&](auto kind) { expect_refused([&] { at.add(kind); }, add_call, is_missing); });
    expect_refused([&] { return at.add(alloc_node(4)); }, add_call, is_missing);
    expect_refused([&] { at.add(free_node(device.data())); }, add_call, is_missing);
    expect_refused([&] { return at.add(child_node(other)); }, add_call, is_missing);
    expect_refused([&] { return at.add(if_node(of_other)); }, add_call, is_missing);
    expect_refused([&] { return at.join(); }, "graph_builder_ref::join", is_missing);
    expect_refused([&] { return at.make_condition(0); }, "graph_builder_ref::make_condition",
                   is_missing);
  }
  /// The same, and that the node cannot be changed.
  void expect_no_node(node const& it, char const* is_missing = was_destroyed) {
    expect_no_place(it, is_missing);
    for_each_kind(
        [&](auto kind) { expect_refused([&] { it.set(kind); }, "node::set", is_missing); });
    expect_refused([&] { it.after(it); }, "node::after", is_missing);
    expect_refused([&] { it.destroy(); }, "node::destroy", is_missing);
  }
};

TEST_F(MissingGraph, TakesNoNodesIfThereWasNoneOrItWasDestroyedOrDetached) {
  expect_no_place(graph_builder_ref(), "the node, or place, is empty");
  expect_no_node(node(), "the node, or place, is empty");
  EXPECT_EQ(node().get(), nullptr);
  graph source(*worker);
  node const of_detached = add_to(source, 0);
  owned_graph const detached(source.detach());
  EXPECT_EQ(source.get(), nullptr);
  expect_no_node(of_detached);
  expect_no_place(source);
  node const of_destroyed = add_to(*built, 0);
  built.reset();
  expect_no_node(of_destroyed);
}

TEST_F(MissingGraph, TakesNoNodesIfMovedFromButTheOtherDoes) {
  graph moved_to(*worker);
  node const of_old = add_to(moved_to, 1);
  node const made = add_to(*built, 0);
  moved_to = std::move(*built);
  expect_no_place(*built);
  expect_no_node(of_old);
  EXPECT_EQ(built->get(), nullptr);
  graph around(*worker);
  expect_refused([&] { return build(around).add(child_node(*built)); }, "graph_builder_ref::add",
                 was_destroyed);
  expect_refused([&] { return built->clone(); }, "graph::clone", was_destroyed);
  expect_refused([&] { built->write_dot("/nowhere"); }, "graph::write_dot", was_destroyed);
  made.set(kernel_node(add, {}, cells.data(), 2));
  node const second = add_to(made, 0, 3);
  EXPECT_EQ(successors_of(made), std::vector<node>{second});
  graph const again = std::move(moved_to);
  EXPECT_EQ(nodes_in(again).size(), 2U);
  run(again);
  EXPECT_EQ(cells.load(), 5);
}

TEST_F(MissingGraph, HasNoNodeThatWasDestroyedAlsoIfAnotherHasItsHandle) {
  constexpr char const* is_gone = "the node was destroyed";
  graph_exec exec(*built);
  node const there = add_to(*built, 0);
  node const gone = add_to(*built, 0, 10);
  exec = graph_exec(*built);
  node const copied = gone;
  gone.destroy();
  for (int i = 0; i < 3; ++i) {
    for (node const& each : {gone, copied}) {
      expect_no_node(each, is_gone);
      for_each_kind([&](auto kind) {
        expect_refused([&] { escrow::set(exec, each, kind); }, "set", is_gone);
      });
      expect_refused([&] { there.after(each); }, "node::after", "`other` is a node that was");
      expect_refused([&] { return there.join({each}); }, "graph_builder_ref::join",
                     "`others` is a node that was");
    }
    add_to(gone.node_of(there.get()), 0);  // it may get the handle
  }
  EXPECT_EQ(nodes_in(*built).size(), 4U);
  run(*built);
  EXPECT_EQ(cells.load(), 4);
}

}  // namespace
}  // namespace escrow::test
