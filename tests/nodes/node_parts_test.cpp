// SPDX-License-Identifier: Apache-2.0
// Child graphs, and bodies of conditional nodes: nodes inside them that are changed or destroyed, a
// child that gets another graph, and what is kept then. Nodes of an exec that do not run.
#include "nodes_world.hpp"

namespace escrow::test {
namespace {

class NodeParts : public nodes_world {
 protected:
  /// A graph of one node that adds `value` to a cell, which it owns.
  [[nodiscard]] graph adds(fate_ptr const& fate, int value, int cell = 0) {
    graph made(*worker);
    add_owned(made, fate, value, cell);
    return made;
  }
  [[nodiscard]] static node inside(node const& child) {
    auto const its = nodes_of(embedded_in(child));
    must(its.size() == 1, "the child has one node");
    return child.node_of(its[0]);
  }
  [[nodiscard]] int added_by(graph_exec& exec) {
    cells.store(0, 0);
    run(exec);
    return cells.load();
  }
  void set(node const& changed, fate_ptr const& fate, int value) {
    changed.set(kernel_node(add, {}, shared(fate), value));
  }

  fate_ptr first = make_fate();
  fate_ptr second = make_fate();
  fate_ptr third = make_fate();
};

TEST_F(NodeParts, ANodeInAChildKeepsWhatItIsGivenForTheGraphItsClonesAndExecs) {
  node const child = build(*built).add(child_node(adds(first, 1)));
  set(inside(child), second, 10);
  std::optional<graph> twin(built->clone());
  std::optional<graph_exec> exec(*built);
  std::optional<graph_exec> of_twin(*twin);
  EXPECT_TRUE(exec->is_bare());
  EXPECT_EQ(exec->held().owners, 2U);
  built.reset();
  EXPECT_EQ(added_by(*exec), 10);
  exec.reset();
  twin.reset();
  EXPECT_EQ(added_by(*of_twin), 10);
  EXPECT_TRUE(is_kept(second));
  of_twin.reset();
  EXPECT_TRUE(is_released(first));
  EXPECT_TRUE(is_released(second));
}

TEST_F(NodeParts, ANodeInAChildOfACloneHasItsOwnersThere) {
  node const child = build(*built).add(child_node(adds(first, 1)));
  set(inside(child), second, 10);
  std::optional<graph> const twin(built->clone());
  built.reset();
  EXPECT_TRUE(is_kept(second));
  inside(sole_node(*twin)).destroy();
  EXPECT_TRUE(is_released(second));
  EXPECT_TRUE(is_kept(first)) << "it came with the child";
  EXPECT_EQ(nodes_of(embedded_in(sole_node(*twin))).size(), 0U);
}

TEST_F(NodeParts, ANodeInAChildIsChangedInAnExec) {
  node const child = build(*built).add(child_node(adds(first, 1)));
  std::optional<graph_exec> exec(*built);
  escrow::set(*exec, inside(child), kernel_node(add, {}, shared(second), 10));
  EXPECT_EQ(added_by(*exec), 10);
  EXPECT_TRUE(is_kept(second));
  exec.reset();
  EXPECT_TRUE(is_released(second));
}

TEST_F(NodeParts, AChildGetsAnotherGraphWithItsOwners) {
  node const child = hold_up_at(*built).add(child_node(adds(first, 1)));
  set(inside(child), second, 2);
  std::optional<graph_exec> before(*built);
  graph other = adds(third, 10);
  add_to(other, 0, 100);
  child.set(child_node(other));
  other = graph(*worker);
  EXPECT_EQ(nodes_of(embedded_in(child)).size(), 2U);
  std::optional<graph_exec> after(*built);
  EXPECT_TRUE(after->is_bare());
  EXPECT_EQ(after->held().owners, 1U);
  built.reset();
  before->launch(two);
  before.reset();
  EXPECT_TRUE(stays_kept(first));
  EXPECT_TRUE(is_kept(second));
  flag.raise();
  EXPECT_TRUE(is_released(first));
  EXPECT_TRUE(is_released(second));
  EXPECT_EQ(cells.load(), 2);
  EXPECT_EQ(added_by(*after), 110);
  EXPECT_TRUE(is_kept(third));
  after.reset();
  EXPECT_TRUE(is_released(third));
}

TEST_F(NodeParts, AChildGetsAnotherGraphInAnExecAlone) {
  node const child = hold_up_at(*built).add(child_node(adds(first, 1)));
  std::optional<graph_exec> exec(*built);
  escrow::set(*exec, child, child_node(adds(second, 10)));
  EXPECT_TRUE(is_kept(second));
  exec->launch(two);
  escrow::set(*exec, child, child_node(adds(third, 100)));
  EXPECT_TRUE(stays_kept(second));
  flag.raise();
  sync(two);
  EXPECT_TRUE(is_released(second));
  EXPECT_EQ(cells.load(), 10);
  EXPECT_TRUE(exec->is_bare());
  EXPECT_EQ(added_by(*exec), 100);
  escrow::set(*exec, inside(child), kernel_node(add, {}, cells.data(), 1000));
  EXPECT_EQ(added_by(*exec), 1000);
  graph_exec other(*built);
  EXPECT_EQ(added_by(other), 1);
  exec->update(*built);
  EXPECT_TRUE(is_released(third));
  EXPECT_EQ(added_by(*exec), 1);
}

TEST_F(NodeParts, AChildOfAnExecGivesUpWhatNeitherTheGraphNorAnotherNodeHas) {
  for (bool const is_of_graph : {true, false}) {
    fate_ptr const its = make_fate();
    std::optional<graph> shared_child(adds(its, 1));
    graph const own_child = adds(first, 100);
    built.emplace(*worker);
    auto const child = [&] { return child_node(is_of_graph ? *shared_child : own_child); };
    node const changed = build(*built).add(child());
    node const other = build(*built).add(child());
    std::optional<graph_exec> exec(*built);
    escrow::set(*exec, changed, child_node(*shared_child));
    if (!is_of_graph) escrow::set(*exec, other, child_node(*shared_child));
    escrow::set(*exec, changed, child_node(adds(second, 10)));
    shared_child.reset();
    built.reset();
    EXPECT_TRUE(stays_kept(its)) << is_of_graph;
    EXPECT_EQ(added_by(*exec), 11);
    exec.reset();
    EXPECT_TRUE(is_released(its)) << is_of_graph;
  }
}

TEST_F(NodeParts, AGraphThatDoesNotFitAChildIsRefused) {
  node const child = build(*built).add(child_node(adds(first, 1)));
  node const begun = add_to(*built, 0);
  graph_exec exec(*built);
  graph longer = adds(second, 1);
  add_to(longer, 0);
  auto const expect_note = [](auto&& failing, std::vector<std::string> parts) {
    parts.push_back("tests/nodes/node_parts_test.cpp");
    test::expect_error<cuda_error>(failing, parts);
  };
  expect_note([&] { escrow::set(exec, child, child_node(longer)); },
              {"set: ", "must have the nodes and edges", "make another graph_exec"});
  std::string const both = "the node is of kind kernel, `kind` is of kind child";
  expect_note([&] { begun.set(child_node(longer)); }, {"node::set", both});
  expect_note([&] { escrow::set(exec, begun, child_node(longer)); }, {"set: ", both});
  condition const always = build(longer).make_condition(1);
  build(longer).add(if_node(always));
  expect_note([&] { child.set(child_node(longer)); }, {"node::set", "cudaErrorNotSupported"});
  EXPECT_EQ(added_by(exec), 2);
  graph moved = adds(second, 1);
  graph const taken(std::move(moved));
  // NOLINTNEXTLINE(bugprone-use-after-move): that is tested
  expect_refused([&] { child.set(child_node(moved)); }, "node::set", "moved from");
}

TEST_F(NodeParts, ADestroyedNodesOwnersGoWithTheCall) {
  node const kept = add_owned(*built, first);
  node const removed = add_owned(kept, second);
  std::optional<graph_exec> exec(*built);
  add_owned(kept, third).destroy();
  EXPECT_TRUE(is_released(third));
  removed.destroy();
  EXPECT_TRUE(is_kept(second)) << "an exec has it";
  exec.reset();
  EXPECT_TRUE(is_released(second));
  EXPECT_TRUE(is_kept(first));
}

TEST_F(NodeParts, OwnersInBodiesGoWithTheirConditionalNode) {
  condition const always = build(*built).make_condition(1);
  conditional_node const made = build(*built).add(if_node(always));
  body_graph const body = made.body();
  add_owned(body, first);
  condition const inner = body.make_condition(1);
  body_graph const nested = body.add(while_node(inner)).body();
  node const nested_node = add_owned(nested, second);
  add_owned(*built, third);
  made.destroy();
  EXPECT_TRUE(is_released(first));
  EXPECT_TRUE(is_released(second));
  EXPECT_TRUE(is_kept(third));
  static_cast<void>(
      build(*built).add(if_node(always)));  // its body may get the handle of the one before
  constexpr char const* gone = "is in a body that was destroyed with its node";
  expect_refused([&] { add_to(body, 0); }, "graph_builder_ref::add", gone);
  expect_refused([&] { add_to(nested, 0); }, "graph_builder_ref::add", gone);
  expect_refused([&] { nested_node.destroy(); }, "node::destroy", gone);
  expect_refused([&] { return body.get(); }, "body_graph::get", gone);
}

TEST_F(NodeParts, AConditionServesAgainOnceItsNodeIsDestroyed) {
  condition const always = build(*built).make_condition(1);
  conditional_node const made = build(*built).add(if_node(always));
  condition const inner = made.body().make_condition(1);
  condition const unused = made.body().make_condition(1);
  add_owned(made.body().add(if_node(inner)).body(), first);
  add_owned(*built, third);
  made.destroy();
  for (condition const& each : {always, inner, unused}) {
    expect_error([&] { return graph_exec(*built); }, cudaErrorInvalidValue);  // of CUDA
    add_to(build(*built).add(if_node(each)).body(), 0, 10);
  }
  graph_exec exec(*built);
  EXPECT_TRUE(exec.is_bare());
  EXPECT_EQ(added_by(exec), 31);
}

TEST_F(NodeParts, ANodeThatIsDisabledInAnExecDoesNothingThereAndKeepsItsOwners) {
  node const one_node = add_owned(*built, first, 1);
  node const other = add_owned(one_node, second, 10);
  node const child = other.add(child_node(adds(third, 100)));
  condition const always = child.make_condition(1);
  node const in_body = add_to(child.add(if_node(always)).body(), 0, 1000);
  node const called = child.add(host_node([] {}));
  graph_exec exec(*built);
  EXPECT_TRUE(is_enabled(exec, other));
  for (node const& each : {other, inside(child), in_body}) {
    set_enabled(exec, each, false);
    EXPECT_FALSE(is_enabled(exec, each));
  }
  EXPECT_EQ(added_by(exec), 1);
  escrow::set(exec, other, kernel_node(add, {}, cells.data(), 20));
  EXPECT_EQ(added_by(exec), 1);
  for (node const& each : {other, inside(child), in_body}) set_enabled(exec, each, true);
  EXPECT_EQ(added_by(exec), 1121);
  EXPECT_TRUE(is_kept(second));
  graph plain(*worker);
  node const repeated = add_to(plain, 0);
  graph_exec copies(plain, {.copies = 2});
  set_enabled(copies, repeated, false);
  cells.store(0, 0);
  copies.launch_many(two, 5);
  copies.update(plain);
  EXPECT_EQ(copies.copies(), 1U);
  copies.launch_many(two, 5);
  sync(two);
  EXPECT_EQ(cells.load(), 0);
  set_enabled(copies, repeated, true);
  copies.update(plain);
  EXPECT_EQ(copies.copies(), 2U);
  copies.launch_many(two, 5);
  sync(two);
  EXPECT_EQ(cells.load(), 5);
  node const late = add_to(*built, 0);
  auto const expect_note = [&](node const& given, std::string const& problem) {
    std::vector<std::string> const parts{"set_enabled: ", problem,
                                         "tests/nodes/node_parts_test.cpp"};
    test::expect_error<cuda_error>([&] { set_enabled(exec, given, false); }, parts);
    test::expect_error<cuda_error>([&] { return is_enabled(exec, given); },
                                   {"is_enabled: ", problem, "tests/nodes/node_parts_test.cpp"});
  };
  expect_note(called, "the node is of kind host: CUDA disables kernels, memsets and memcpies only");
  expect_note(child, "the node is of kind child");
  expect_note(late, "the node is younger than the exec");
  graph other_graph(*worker);
  expect_refused([&] { set_enabled(exec, add_to(other_graph, 0), false); }, "set_enabled",
                 "the node is not of the graph that the exec was created from");
}

}  // namespace
}  // namespace escrow::test
