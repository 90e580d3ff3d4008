// Nodes that are changed or destroyed, in graphs: whose owners go, and whose stay.
#include "escrow/core/error.hpp"
#include "node_changes_fixture.hpp"

namespace escrow::test {
namespace {

class NodeChanges : public node_changes_test {};

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
  changed.set(kernel_node(add, {}, cells_.data(), 100));
  EXPECT_TRUE(goes(second_));
  set(changed, third_, 100);
  EXPECT_TRUE(lives(third_));
  EXPECT_EQ(built_->held().owners, 1U);
}

TEST_F(NodeChanges, AChangeThatCudaRefusesChangesNothing) {
  node const filled = build(*built_).add(memset_node(shared(first_), {.value = 1, .width = 1}));
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

TEST_F(NodeChanges, ExecsOfOneGraphTakeTurnsWhateverWasChangedMeanwhile) {
  node const held_up = hold_up(*built_);
  node const doomed = add_node(held_up, first_);
  add_node(held_up, second_);
  graph_exec one(*built_);
  doomed.destroy();
  graph_exec two(*built_);
  set(two, nodes_in(*built_).at(1), third_, 10);
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
  condition const always = build(*built_).make_condition(1);
  node const inside = add_node(build(*built_).add(if_node(always)).body(), first_);
  graph_exec exec(*built_);
  set(inside, second_, 10);
  set(exec, inside, third_, 100);
  run(exec);
  EXPECT_EQ(cells_.load(), 100);
  EXPECT_TRUE(lives(first_)) << "the exec got it from the graph";
  EXPECT_TRUE(lives(second_));
  built_.reset();
  EXPECT_TRUE(goes(second_));
  EXPECT_TRUE(lives(third_));
}

TEST_F(NodeChanges, CallablesEventsFillsAndCopiesAreSwappedToo) {
  int calls = 0;
  shared_event const old_event = shared_event::make();
  shared_event const new_event = shared_event::make();
  node const called = build(*built_).add(host_node([mine = std::make_shared<probe>(first_)] {}));
  node const recorded = called.add(record_node(old_event));
  node const filled = recorded.add(memset_node(shared(second_), {.value = 1, .width = 1}));
  node const copied = filled.add(memcpy_node(shared(third_, 1), cells_.data(), sizeof(int)));
  graph_exec exec(*built_);
  escrow::set(exec, called, host_node([&calls] { ++calls; }));
  escrow::set(exec, recorded, record_node(new_event));
  escrow::set(exec, filled, memset_node(cells_.data(), {.value = 5, .width = 1}));
  escrow::set(exec, copied, memcpy_node(cells_.data() + 1, cells_.data(), sizeof(int)));
  EXPECT_EQ(exec.held().owners, 6U) << "the four of the graph, the callable and the event";
  EXPECT_TRUE(lives(first_));
  called.set(host_node([] {}));
  filled.set(memset_node(cells_.data(), {.value = 1, .width = 1}));
  copied.set(memcpy_node(cells_.data() + 1, cells_.data(), sizeof(int)));
  recorded.set(record_node(new_event.ref()));
  EXPECT_TRUE(lives(third_));
  run(exec);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(cells_.load(1), 5);
  exec.update(*built_);
  EXPECT_TRUE(goes(first_));
  EXPECT_TRUE(goes(second_));
  EXPECT_TRUE(goes(third_));
  EXPECT_EQ(exec.held().owners, 1U) << "the callable";
  EXPECT_EQ(event_of(recorded), new_event.get());
}

}  // namespace
}  // namespace escrow::test
