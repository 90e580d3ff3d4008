// Nodes that are changed in execs, and execs that are updated: whose owners go, and whose stay.
#include <thread>

#include "node_changes_fixture.hpp"

namespace escrow::test {
namespace {

class NodeChanges : public node_changes_test {};

TEST_F(NodeChanges, ChangingAnExecSwapsWhatItWasGivenAfterTheLaunchesInFlight) {
  node const changed = add_node(hold_up(*built_), first_);
  std::optional<graph_exec> exec(*built_);
  set(*exec, changed, second_, 10);
  exec->launch(stream_);
  set(*exec, changed, third_, 100);
  EXPECT_TRUE(stays(second_));
  flag_.raise();
  must(cudaStreamSynchronize(stream_));
  EXPECT_TRUE(goes(second_)) << "the exec is there, but does not use it any more";
  EXPECT_EQ(cells_.load(), 10);
  built_.reset();
  run(*exec);
  EXPECT_EQ(cells_.load(), 110);
  EXPECT_TRUE(lives(first_)) << "the exec got it from its graph";
  EXPECT_TRUE(lives(third_));
  EXPECT_EQ(exec->held().owners, 2U);
  exec.reset();
  EXPECT_TRUE(goes(first_));
  EXPECT_TRUE(goes(third_));
}

TEST_F(NodeChanges, WhatAnExecWasGivenForANodeStaysWhenAnotherIsChanged) {
  node const one = add_node(hold_up(*built_), make_fate());
  node const two = add_node(one, make_fate());
  std::optional<graph_exec> exec(*built_);
  set(*exec, one, first_, 10);
  set(*exec, two, second_, 100);
  exec->launch(stream_);
  set(*exec, two, third_, 1000);
  exec.reset();
  EXPECT_TRUE(stays(first_));
  EXPECT_TRUE(stays(second_));
  flag_.raise();
  must(cudaStreamSynchronize(stream_));
  EXPECT_EQ(cells_.load(), 110);
  EXPECT_TRUE(goes(first_));
  EXPECT_TRUE(goes(second_));
  EXPECT_TRUE(goes(third_));
}

TEST_F(NodeChanges, ChangingAnExecLeavesTheGraphAndOtherExecsAlone) {
  node const changed = add_node(*built_, first_);
  graph_exec other(*built_);
  {
    graph_exec exec(*built_);
    set(exec, changed, second_, 10);
    EXPECT_TRUE(lives(first_));
    run(exec);
  }
  EXPECT_TRUE(goes(second_));
  EXPECT_TRUE(lives(first_));
  run(other);
  graph_exec third(*built_);
  run(third);
  EXPECT_EQ(cells_.load(), 12);
}

TEST_F(NodeChanges, AnExecMayBeChangedAgainAndAgain) {
  node const one = add_node(*built_, first_);
  node const two = add_node(one, second_, 1, 1);
  graph_exec exec(*built_);
  static_cast<void>(built_->get());
  fate_ptr last = third_;
  set(exec, one, last, 2);
  for (int i = 0; i < 10; ++i) {
    fate_ptr const next = make_fate();
    set(exec, one, next, 2);
    run(exec);
    EXPECT_TRUE(goes(last));
    last = next;
  }
  EXPECT_TRUE(lives(first_)) << "the graph has it";
  escrow::set(exec, two, kernel_node(add, {}, cells_.data() + 1, 5));
  EXPECT_EQ(exec.held().owners, 3U) << "what it got from its graph, and the last";
  run(exec);
  EXPECT_EQ(cells_.load(0), 22);
  EXPECT_EQ(cells_.load(1), 15);
  built_.reset();
  EXPECT_TRUE(lives(first_));
  EXPECT_TRUE(lives(second_));
  EXPECT_TRUE(lives(last));
}

TEST_F(NodeChanges, AnExecThatHeldNothingMayBeGivenOwners) {
  node const changed = build(*built_).add(kernel_node(add, {}, cells_.data(), 1));
  std::optional<graph_exec> exec(*built_);
  EXPECT_EQ(exec->held().owners, 0U);
  run(*exec);
  set(*exec, changed, first_, 10);
  EXPECT_TRUE(lives(first_));
  run(*exec);
  EXPECT_EQ(cells_.load(), 11);
  built_.reset();
  EXPECT_TRUE(lives(first_));
  exec.reset();
  EXPECT_TRUE(goes(first_));
}

TEST_F(NodeChanges, AnExecOfACapturedGraphMayBeGivenOwnersByAnyThread) {
  graph const captured = escrow::capture(
      stream_, [&](stream_ref on) { must(launch_add(on.get(), cells_.data(), 1)); });
  graph_exec one(captured);
  graph_exec two(captured);
  node const changed = sole_node(captured);
  std::thread other([&] { set(one, changed, first_, 10); });
  set(two, changed, second_, 100);
  other.join();
  run(one);
  run(two);
  EXPECT_EQ(cells_.load(), 110);
}

TEST_F(NodeChanges, AnUpdateAfterNodesWereAddedAndDestroyedLetsGoOfNothingThatIsInUse) {
  node const doomed = add_node(*built_, make_fate(), 1, 0);
  node const stays_there = add_node(*built_, first_, 1, 1);
  graph_exec exec(*built_);
  doomed.destroy();
  add_node(*built_, second_, 1, 2);
  exec.update(*built_);
  escrow::set(exec, stays_there, kernel_node(add, {}, shared(third_, 3), 5));
  built_.reset();
  run(exec);
  // Which of the two the changed node stands for now is CUDA's affair.
  EXPECT_EQ(cells_.load(1) + cells_.load(2), 1);
  EXPECT_TRUE(lives(cells_.load(1) == 1 ? first_ : second_)) << "the exec adds to its cell";
}

TEST_F(NodeChanges, AnUpdateFromTheChangedGraphSwapsWhatTheExecKeeps) {
  node const changed = add_node(*built_, first_);
  graph_exec exec(*built_);
  set(changed, second_, 10);
  exec.update(*built_);
  EXPECT_TRUE(goes(first_));
  set(exec, changed, third_, 100);
  run(exec);
  EXPECT_EQ(cells_.load(), 100);
  built_.reset();
  EXPECT_TRUE(lives(second_)) << "until the next update";
  EXPECT_TRUE(lives(third_));
}

TEST_F(NodeChanges, AnExecThatWasUpdatedFromAnotherGraphKeepsWhatThatHadUntilTheNextUpdate) {
  node const changed = add_node(*built_, first_);
  std::optional<graph_exec> exec(*built_);
  {
    graph other(deleter_);
    add_node(other, second_, 10);
    exec->update(other);
  }
  set(*exec, changed, third_, 100);
  EXPECT_TRUE(lives(second_)) << "the exec got it from a graph";
  run(*exec);
  EXPECT_EQ(cells_.load(), 100);
  exec->update(*built_);
  EXPECT_TRUE(goes(second_));
  EXPECT_TRUE(goes(third_));
  EXPECT_TRUE(lives(first_));
}

TEST_F(NodeChanges, WhatAnEmbeddedCopyUsesTooStaysWithTheExec) {
  node const changed = add_node(*built_, first_);
  build(*built_).add(child_node(built_->clone()));
  std::optional<graph_exec> exec(*built_);
  set(*exec, changed, second_, 10);
  built_.reset();
  EXPECT_TRUE(lives(first_));
  run(*exec);
  EXPECT_EQ(cells_.load(), 11);
  exec.reset();
  EXPECT_TRUE(goes(first_));
  EXPECT_TRUE(goes(second_));
}

}  // namespace
}  // namespace escrow::test
