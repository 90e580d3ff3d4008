// SPDX-License-Identifier: Apache-2.0
// Owners of nodes in several execs, bodies and copies, each of which goes with the last that has
// it; and execs whose nodes are off, or whose conditions begin otherwise.
#include "graph_nodes.hpp"
#include "nodes_world.hpp"

namespace escrow::test {
namespace {

class OwnersApart : public nodes_world {
 protected:
  [[nodiscard]] int added_by(graph_exec& exec) {
    cells.store(0, 0);
    run(exec);
    return cells.load();
  }

  fate_ptr first = make_fate();
  fate_ptr second = make_fate();
  fate_ptr third = make_fate();
};

TEST_F(OwnersApart, TwoExecsOfAGraphKeepWhatEachHas) {
  node const changed = add_owned(*built, first, 1);
  std::optional<graph_exec> one_exec(*built);
  std::optional<graph_exec> other_exec(*built);
  escrow::set(*one_exec, changed, kernel_node(add, {}, shared(second), 10));
  escrow::set(*other_exec, changed, kernel_node(add, {}, shared(third), 100));
  built.reset();
  one_exec.reset();
  EXPECT_TRUE(is_released(second));
  EXPECT_TRUE(is_kept(first));
  EXPECT_TRUE(is_kept(third));
  EXPECT_EQ(added_by(*other_exec), 100);
  other_exec.reset();
  EXPECT_TRUE(is_released(first));
  EXPECT_TRUE(is_released(third));
}

TEST_F(OwnersApart, ANodeInPlaceOfADestroyedOneHasItsOwnerAlone) {
  node const destroyed = add_owned(*built, first, 1);
  std::optional<graph_exec> before(*built);
  destroyed.destroy();
  add_owned(*built, second, 10);
  std::optional<graph_exec> after(*built);
  EXPECT_EQ(added_by(*before), 1);
  EXPECT_EQ(added_by(*after), 10);
  before.reset();
  EXPECT_TRUE(is_released(first));
  EXPECT_TRUE(is_kept(second));
}

TEST_F(OwnersApart, EachBranchKeepsAndReleasesItsOwn) {
  auto* const two_bodies = +[](condition const& chosen) { return switch_node(chosen, 2); };
  for (auto* const kind :
       {+[](condition const& chosen) { return if_else_node(chosen); }, two_bodies}) {
    fate_ptr const of_one = make_fate();
    fate_ptr const of_other = make_fate();
    graph of(*worker);
    escrow::conditional_node const choice = build(of).add(kind(build(of).make_condition(1)));
    add_owned(choice.bodies()[0], of_one, 1);
    add_owned(choice.bodies()[1], of_other, 10);
    std::optional<graph_exec> exec(of);
    cells.store(0, 0);
    run(*exec);
    EXPECT_NE(cells.load(), 0);
    choice.destroy();
    EXPECT_TRUE(is_kept(of_one));
    EXPECT_TRUE(is_kept(of_other));
    exec.reset();
    EXPECT_TRUE(is_released(of_one));
    EXPECT_TRUE(is_released(of_other));
  }
}

TEST_F(OwnersApart, ADestroyedChildTakesWhatIsInsideOfIt) {
  graph inner(*worker);
  add_owned(inner, first, 1);
  graph middle(*worker);
  build(middle).add(child_node(inner));
  inner = graph(*worker);
  node const child = build(*built).add(child_node(middle));
  middle = graph(*worker);
  EXPECT_TRUE(is_kept(first));
  child.destroy();
  EXPECT_EQ(nodes_of(built->get()).size(), 0U);
  built.reset();
  EXPECT_TRUE(is_released(first));
}

TEST_F(OwnersApart, AnUpdateInFlightKeepsWhatTheExecWasGiven) {
  node const held = hold_up_at(*built);
  node const changed = held.add(kernel_node(add, {}, shared(first), 1));
  graph_exec exec(*built);
  escrow::set(exec, changed, kernel_node(add, {}, shared(second), 10));
  graph other(*worker);
  hold_up_at(other).add(kernel_node(add, {}, shared(third), 100));
  exec.launch(two);
  exec.update(other);
  EXPECT_TRUE(stays_kept(second));
  flag.raise();
  EXPECT_TRUE(is_released(second));
  EXPECT_TRUE(is_kept(third));
  EXPECT_EQ(cells.load(), 10);
}

TEST_F(OwnersApart, ARefusedUpdateLeavesTheExecAsItWas) {
  node const changed = add_owned(*built, first, 1);
  std::optional<graph_exec> exec(*built);
  escrow::set(*exec, changed, kernel_node(add, {}, shared(second), 10));
  {
    graph larger(*worker);
    node const one_node = add_owned(larger, third, 100);
    add_to(one_node, 0);
    expect_error([&] { return exec->update(larger), 0; }, cudaErrorGraphExecUpdateFailure);
  }
  EXPECT_TRUE(is_released(third));
  built.reset();
  EXPECT_TRUE(is_kept(second));
  EXPECT_EQ(added_by(*exec), 10);
  exec.reset();
  EXPECT_TRUE(is_released(first));
  EXPECT_TRUE(is_released(second));
}

TEST_F(OwnersApart, FillsAndCopiesAreTurnedOffAndOnAgain) {
  node const filled =
      build(*built).add(memset_node(device.data(), {.value = 7, .element_bytes = 4, .width = 1}));
  node const copied = filled.add(memcpy_node(cells.data(), device.data(), sizeof(int)));
  graph_exec exec(*built);
  for (int i = 0; i < 2; ++i) {  // a second time changes nothing
    set_enabled(exec, copied, false);
    EXPECT_FALSE(is_enabled(exec, copied));
  }
  EXPECT_EQ(added_by(exec), 0);
  for (int i = 0; i < 2; ++i) {
    set_enabled(exec, copied, true);
    set_enabled(exec, filled, false);
  }
  EXPECT_TRUE(is_enabled(exec, copied));
  must(cudaMemset(device.data(), 0, sizeof(int)));
  EXPECT_EQ(added_by(exec), 0);
  set_enabled(exec, filled, true);
  EXPECT_EQ(added_by(exec), 7);
}

TEST_F(OwnersApart, AnUpdateBringsAnotherBeginOfACondition) {
  auto const choosing = [this](graph& of, unsigned initial) {
    escrow::conditional_node const choice =
        build(of).add(switch_node(build(of).make_condition(initial), 3));
    for (int i = 0; i < 3; ++i) add_to(choice.bodies()[static_cast<std::size_t>(i)], 0, i + 1);
  };
  choosing(*built, 0);
  graph_exec exec(*built);
  EXPECT_EQ(added_by(exec), 1);
  graph other(*worker);
  choosing(other, 2);
  exec.update(other);
  EXPECT_EQ(added_by(exec), 3);
}

TEST_F(OwnersApart, ACopyGetsOtherMemoryOnHostAndDevice) {
  node const copied = build(*built).add(memcpy_node(cells.data(), device.data(), sizeof(int)));
  must(cudaMemset(device.data(), 0, 8 * sizeof(int)));
  cells.store(1, 5);
  copied.set(memcpy_node(cells.data() + 2, cells.data() + 1, sizeof(int)));
  graph_exec on_host(*built);
  run(on_host);
  EXPECT_EQ(cells.load(2), 5);
  copied.set(memcpy_node(device.data() + 1, cells.data() + 1, sizeof(int)));
  graph_exec to_device(*built);
  run(to_device);
  copied.set(memcpy_node(cells.data() + 3, device.data() + 1, sizeof(int)));
  graph_exec back(*built);
  run(back);
  EXPECT_EQ(cells.load(3), 5);
}

TEST_F(OwnersApart, ABodyIsCapturedIntoAndBuiltOn) {
  escrow::conditional_node const choice =
      build(*built).add(if_node(build(*built).make_condition(1)));
  capture_into(choice.body().get(),
               [&](cudaStream_t on) { must(launch_add(on, cells.data(), 1)); });
  auto const captured_nodes = nodes_of(choice.body().get());
  ASSERT_EQ(captured_nodes.size(), 1U);
  add_to(choice.body().node_of(captured_nodes[0]), 0, 10);
  graph_exec exec(*built);
  EXPECT_EQ(added_by(exec), 11);
}

}  // namespace
}  // namespace escrow::test
