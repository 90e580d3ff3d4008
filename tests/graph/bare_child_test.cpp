// Graphs with child graphs: their execs are bare where the children were added by graph::add_child,
// at any depth, and hold what the children hold.
#include <optional>

#include "hoist_fixture.hpp"

namespace escrow::test {
namespace {

class BareChild : public hoist_test {
 protected:
  // A graph with `inner` as its only node.
  [[nodiscard]] static graph around(graph const& inner) {
    graph outer;
    outer.add_child(inner);
    return outer;
  }
  [[nodiscard]] int runs() {
    sync_all();
    return cells.load();
  }
};

TEST_F(BareChild, AnExecOfTheParentIsBareAndHoldsWhatTheChildHeld) {
  cargo taken = make_cargo();
  std::optional<graph_exec> exec(around(captured(taken)));
  expect_bare_sole_holder(exec, taken);
  EXPECT_EQ(runs(), 2);
}

TEST_F(BareChild, TwoLevelsDownIsBareToo) {
  cargo taken = make_cargo();
  std::optional<graph_exec> exec(around(around(captured(taken))));
  expect_bare_sole_holder(exec, taken);
  EXPECT_EQ(runs(), 2);
}

TEST_F(BareChild, AtEachLevelSomethingMayBeHeld) {
  cargo inmost = make_cargo();
  cargo middle = make_cargo();
  cargo outmost = make_cargo();
  std::optional<graph> outer(captured(outmost));
  {
    graph between = captured(middle);
    between.add_child(captured(inmost));
    outer->add_child(between);
  }
  std::optional<graph_exec> exec(*outer);
  outer.reset();
  EXPECT_TRUE(is_kept(inmost));
  EXPECT_TRUE(is_kept(middle));
  expect_bare_sole_holder(exec, outmost);
  EXPECT_TRUE(comes_back(middle));
  EXPECT_TRUE(comes_back(inmost));
  EXPECT_EQ(runs(), 6);
}

TEST_F(BareChild, TheSameChildTwiceIsHeldOnceAndComesBackOnce) {
  cargo taken = make_cargo();
  std::optional<graph> parent(std::in_place);
  {
    graph const child = captured(taken);
    parent->add_child(child);
    parent->add_child(child);
  }
  std::optional<graph_exec> exec(*parent);
  parent.reset();
  expect_bare_sole_holder(exec, taken);
  EXPECT_EQ(runs(), 4);
}

TEST_F(BareChild, OneNodeOfTheSameChildMayBeDestroyedAndTheOtherHoldsOn) {
  cargo taken = make_cargo();
  std::optional<graph> parent(std::in_place);
  cudaGraphNode_t first = nullptr;
  {
    graph const child = captured(taken);
    first = parent->add_child(child);
    parent->add_child(child);
  }
  must(cudaGraphDestroyNode(first));
  EXPECT_TRUE(is_kept(taken));
  std::optional<graph_exec> exec(*parent);
  parent.reset();
  expect_bare_sole_holder(exec, taken);
  EXPECT_EQ(runs(), 2);
}

TEST_F(BareChild, ADestroyedNodeGivesBackWhatItsChildHeldButNotFromAnEarlierExec) {
  cargo taken = make_cargo();
  graph parent = captured_empty_handed();
  cudaGraphNode_t const node = parent.add_child(captured(taken));
  std::optional<graph_exec> before(parent);
  must(cudaGraphDestroyNode(node));
  EXPECT_TRUE(stays_kept(taken));
  graph_exec after(parent);
  EXPECT_TRUE(after.is_bare());
  expect_bare_sole_holder(before, taken);
  after.launch(two);
  EXPECT_EQ(runs(), 5);
}

TEST_F(BareChild, TheChildMayLiveOnAndHoldsOn) {
  cargo taken = make_cargo();
  std::optional<graph> child(captured(taken));
  { graph_exec(around(*child)).launch(two); }
  sync(two);
  EXPECT_TRUE(stays_kept(taken));
  std::optional<graph_exec> exec(*child);
  child.reset();
  expect_bare_sole_holder(exec, taken);
}

TEST_F(BareChild, AParentThatWasInstantiatedPlainlyBeforeIsRightAllTheSame) {
  cargo taken = make_cargo();
  std::optional<graph> parent(around(captured(taken)));
  owned_exec plain = instantiate(parent->get());
  std::optional<graph_exec> exec(*parent);
  parent.reset();
  exec.reset();
  EXPECT_TRUE(stays_kept(taken));
  must(cudaGraphLaunch(plain, two));
  EXPECT_EQ(runs(), 1);
  plain.reset();
  EXPECT_TRUE(comes_back(taken));
}

TEST_F(BareChild, ThatTookUpMoreAfterItWasAddedDoesNotPassThatOn) {
  cargo early = make_cargo();
  cargo late = make_cargo();
  graph child = captured(early);
  std::optional<graph> parent(around(child));
  capture_into(child.get(), [&](cudaStream_t stream) { load(late, stream); });
  std::optional<graph_exec> exec(*parent);
  parent.reset();
  EXPECT_TRUE(exec->is_bare());
  child = graph();
  EXPECT_TRUE(comes_back(late)) << "the embedded graph is a copy of before";
  expect_bare_sole_holder(exec, early);
}

TEST_F(BareChild, WhatTheEmbeddedGraphTakesUpByItselfIsHeldToo) {
  cargo of_child = make_cargo();
  cargo of_embedded = make_cargo();
  std::optional<graph> parent(std::in_place);
  cudaGraph_t const embedded = embedded_graph(parent->add_child(captured(of_child)));
  load_owner_by_hand(of_embedded, embedded);
  std::optional<graph_exec> exec(*parent);
  parent.reset();
  EXPECT_TRUE(is_kept(of_embedded));
  expect_bare_sole_holder(exec, of_child);
  EXPECT_TRUE(comes_back(of_embedded));
}

TEST_F(BareChild, AParentWithAChildMayBeCloned) {
  cargo taken = make_cargo();
  std::optional<graph> parent(around(around(captured(taken))));
  std::optional<graph> copy(parent->clone());
  parent.reset();
  EXPECT_TRUE(is_kept(taken));
  std::optional<graph_exec> exec(*copy);
  copy.reset();
  expect_bare_sole_holder(exec, taken);
}

TEST_F(BareChild, OfAClonedParentAndOfTheParentGiveBackWhenBothAreGone) {
  cargo taken = make_cargo();
  std::optional<graph> parent(around(captured(taken)));
  std::optional<graph_exec> exec(*parent);
  std::optional<graph_exec> of_copy(parent->clone());
  parent.reset();
  exec->launch(two);
  exec.reset();
  EXPECT_TRUE(stays_kept(taken));
  expect_bare_sole_holder(of_copy, taken);
}

}  // namespace
}  // namespace escrow::test
