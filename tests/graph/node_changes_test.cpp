// Nodes that are changed or destroyed, in graphs and in execs: whose owners go, and whose stay.
#include <thread>

#include "escrow/core/cuda_error.hpp"
#include "node_owners_fixture.hpp"

namespace escrow::test {
namespace {

class NodeChanges : public node_owners_test {
 protected:
  [[nodiscard]] node sole_node(graph const& of) { return of.nodes().at(0); }
  void set(node const& changed, fate_ptr fate, int value) {
    changed.set_launch(add, {}, shared(std::move(fate)), value);
  }
  void set(graph_exec& exec, node const& changed, fate_ptr fate, int value) {
    exec.set_launch(changed, add, {}, shared(std::move(fate)), value);
  }

  template <class Owner>
  void set_launch_of(node const& changed, Owner&& owner) {
    changed.set_launch(add, {}, std::forward<Owner>(owner), 10);
  }
  template <class Owner>
  void set_launch_of(graph_exec& exec, node const& changed, Owner&& owner) {
    exec.set_launch(changed, add, {}, std::forward<Owner>(owner), 10);
  }

  fate_ptr third_ = make_fate();
};

TEST_F(NodeChanges, DestroyingANodeLetsGoOfItsOwnersAlone) {
  node const doomed = add_node(*built_, first_);
  add_node(*built_, second_);
  doomed.destroy();
  EXPECT_TRUE(goes(first_));
  EXPECT_TRUE(lives(second_));
  EXPECT_EQ(built_->held().owners, 1U);
}

TEST_F(NodeChanges, DestroyingANodeOfASealedGraphLetsGoOfItsOwnersAlone) {
  node const doomed = add_node(*built_, first_);
  add_node(*built_, second_);
  static_cast<void>(built_->get());
  doomed.destroy();
  EXPECT_TRUE(goes(first_));
  EXPECT_TRUE(lives(second_));
  built_.reset();
  EXPECT_TRUE(goes(second_));
}

TEST_F(NodeChanges, DestroyingTheLastNodeLeavesAGraphThatHoldsNothing) {
  node const doomed = add_node(*built_, first_);
  static_cast<void>(built_->get());
  doomed.destroy();
  EXPECT_TRUE(goes(first_));
  EXPECT_EQ(built_->held().owners, 0U);
}

TEST_F(NodeChanges, ExecsAndClonesThatWereMadeBeforeKeepTheOwnersOfADestroyedNode) {
  node const doomed = add_node(*built_, first_);
  std::optional<graph_exec> exec(*built_);
  std::optional<graph> copy(built_->clone());
  doomed.destroy();
  EXPECT_TRUE(lives(first_));
  run(*exec);
  exec.reset();
  EXPECT_TRUE(lives(first_));
  copy.reset();
  EXPECT_TRUE(goes(first_));
  EXPECT_EQ(cells_.load(), 1);
}

TEST_F(NodeChanges, ANodeOfACloneIsTheClonesOwn) {
  add_node(*built_, first_);
  graph const copy = built_->clone();
  sole_node(copy).destroy();
  EXPECT_TRUE(lives(first_));
  EXPECT_EQ(copy.held().owners, 0U);
  sole_node(*built_).destroy();
  EXPECT_TRUE(goes(first_));
}

TEST_F(NodeChanges, ChangingANodeSwapsItsOwnersForWhatIsMadeFromThenOn) {
  node const changed = add_node(*built_, first_);
  std::optional<graph_exec> before(*built_);
  set(changed, second_, 10);
  std::optional<graph_exec> after(*built_);
  EXPECT_TRUE(lives(first_));
  run(*before);
  EXPECT_EQ(cells_.load(), 1);
  run(*after);
  EXPECT_EQ(cells_.load(), 11);
  before.reset();
  EXPECT_TRUE(goes(first_));
  EXPECT_TRUE(lives(second_));
  built_.reset();
  EXPECT_TRUE(lives(second_));
  after.reset();
  EXPECT_TRUE(goes(second_));
}

TEST_F(NodeChanges, ChangingANodeThatNobodyInstantiatedLetsGoAtOnce) {
  node const changed = add_node(*built_, first_);
  set(changed, second_, 10);
  EXPECT_TRUE(goes(first_));
  changed.set_launch(add, {}, cells_.data(), 100);
  EXPECT_TRUE(goes(second_));
  set(changed, third_, 100);
  EXPECT_TRUE(lives(third_));
  EXPECT_EQ(built_->held().owners, 1U);
}

TEST_F(NodeChanges, AChangeThatCudaRefusesChangesNothing) {
  node const filled = built_->memset(shared(first_), {.value = 1, .width = 1});
  std::unique_ptr<int, tells> mine(cells_.data(), tells{second_});
  auto const fails = [&](auto&&... to_change) {
    EXPECT_THROW(set_launch_of(to_change..., std::move(mine)), cuda_error) << "it is no kernel";
    ASSERT_NE(mine, nullptr);  // NOLINT(bugprone-use-after-move)
    EXPECT_TRUE(lives(first_));
    EXPECT_TRUE(lives(second_));
    EXPECT_EQ(built_->held().owners, 1U);
  };
  fails(filled);
  static_cast<void>(built_->get());
  fails(filled);
  graph_exec exec(*built_);
  fails(exec, filled);
  EXPECT_EQ(exec.held().owners, 1U);
  run(exec);
  EXPECT_EQ(cells_.load(), 1);
}

TEST_F(NodeChanges, ChangingAnExecSwapsItsOwnersAfterTheLaunchesInFlight) {
  node const changed = add_node(hold_up(*built_), first_);
  std::optional<graph_exec> exec(*built_);
  exec->launch(stream_);
  set(*exec, changed, second_, 10);
  built_.reset();
  EXPECT_TRUE(stays(first_));
  flag_.raise();
  must(cudaStreamSynchronize(stream_));
  EXPECT_TRUE(goes(first_)) << "the exec is there, but does not use it any more";
  EXPECT_EQ(cells_.load(), 1);
  run(*exec);
  EXPECT_EQ(cells_.load(), 11);
  EXPECT_TRUE(lives(second_));
  EXPECT_EQ(exec->held().owners, 1U);
  exec.reset();
  EXPECT_TRUE(goes(second_));
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
  exec.set_launch(two, add, {}, cells_.data() + 1, 5);
  EXPECT_EQ(exec.held().owners, 1U);
  run(exec);
  EXPECT_EQ(cells_.load(0), 22);
  EXPECT_EQ(cells_.load(1), 15);
  built_.reset();
  EXPECT_TRUE(goes(first_));
  EXPECT_TRUE(goes(second_));
  EXPECT_TRUE(lives(last));
}

TEST_F(NodeChanges, AnExecThatHeldNothingMayBeGivenOwners) {
  node const changed = built_->launch(add, {}, cells_.data(), 1);
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
  exec.set_launch(stays_there, add, {}, shared(third_, 3), 5);
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
  EXPECT_TRUE(goes(second_));
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
  EXPECT_TRUE(lives(second_)) << "whose node that is cannot be known";
  run(*exec);
  EXPECT_EQ(cells_.load(), 100);
  exec->update(*built_);
  EXPECT_TRUE(goes(second_));
  EXPECT_TRUE(goes(third_));
  EXPECT_TRUE(lives(first_));
}

TEST_F(NodeChanges, WhatAnEmbeddedCopyUsesTooStaysWithTheExec) {
  node const changed = add_node(*built_, first_);
  built_->embed(built_->clone());
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

TEST_F(NodeChanges, ExecsOfOneGraphTakeTurnsWhateverWasChangedMeanwhile) {
  node const held_up = hold_up(*built_);
  node const doomed = add_node(held_up, first_);
  add_node(held_up, second_);
  graph_exec one(*built_);
  doomed.destroy();
  graph_exec two(*built_);
  set(two, built_->nodes().at(1), third_, 10);
  one.launch(stream_);
  two.launch(other_stream_);
  owned_event const done = make_event();
  must(cudaEventRecord(done, other_stream_));
  EXPECT_TRUE(stays_false([&] { return cells_.load() != 0; }));
  flag_.raise();
  must(cudaDeviceSynchronize());
  EXPECT_EQ(cells_.load(), 12);
}

TEST_F(NodeChanges, OfAConditionalsBodyAreSwappedToo) {
  condition const always = built_->make_condition(1);
  node const inside = add_node(built_->if_then(always).body(), first_);
  graph_exec exec(*built_);
  set(inside, second_, 10);
  set(exec, inside, third_, 100);
  run(exec);
  EXPECT_EQ(cells_.load(), 100);
  EXPECT_TRUE(goes(first_));
  EXPECT_TRUE(lives(second_));
  built_.reset();
  EXPECT_TRUE(goes(second_));
  EXPECT_TRUE(lives(third_));
}

TEST_F(NodeChanges, CallablesEventsFillsAndCopiesAreSwappedToo) {
  int calls = 0;
  shared_event const old_event = shared_event::make();
  shared_event const new_event = shared_event::make();
  node const called = built_->call([mine = std::make_shared<probe>(first_)] {});
  node const recorded = called.record(old_event);
  node const filled = recorded.memset(shared(second_), {.value = 1, .width = 1});
  node const copied = filled.memcpy(shared(third_, 1), cells_.data(), sizeof(int));
  graph_exec exec(*built_);
  exec.set_call(called, [&calls] { ++calls; });
  exec.set_event(recorded, new_event);
  exec.set_memset(filled, cells_.data(), {.value = 5, .width = 1});
  exec.set_memcpy(copied, cells_.data() + 1, cells_.data(), sizeof(int));
  EXPECT_EQ(exec.held().owners, 2U) << "the callable and the event";
  EXPECT_TRUE(lives(first_));
  called.set_call([] {});
  filled.set_memset(cells_.data(), {.value = 1, .width = 1});
  copied.set_memcpy(cells_.data() + 1, cells_.data(), sizeof(int));
  recorded.set_event(new_event.ref());
  EXPECT_TRUE(goes(first_));
  EXPECT_TRUE(goes(second_));
  EXPECT_TRUE(goes(third_));
  run(exec);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(cells_.load(1), 5);
  EXPECT_EQ(recorded.event(), new_event.get());
}

}  // namespace
}  // namespace escrow::test
