// What a node keeps, taken off its graph by hoist().
#include "node_owners_fixture.hpp"

namespace escrow::test {
namespace {

class NodeOwners : public node_owners_test {};

TEST_F(NodeOwners, AreTakenOffByHoist) {
  node const added = add_node(*built_, first_);
  node const other = add_node(*built_, second_);
  {
    hoisted taken = hoist(*built_);
    EXPECT_EQ(built_->held().owners, 0U);
    EXPECT_TRUE(lives(first_));
    taken.release();
  }
  EXPECT_TRUE(goes(first_));
  EXPECT_TRUE(goes(second_));
  added.destroy();
  other.set(kernel_node(add, {}, cells_.data(), 2));
  EXPECT_EQ(nodes_in(*built_).size(), 1U);
}

TEST_F(NodeOwners, AreTakenOffByHoistOfThePlainHandle) {
  node const added = add_node(*built_, first_);
  node const other = add_node(*built_, second_);
  std::optional<hoisted> taken(hoist(built_->get()));
  added.destroy();
  fate_ptr const third = make_fate();
  other.set(kernel_node(add, {}, shared(third), 2));
  EXPECT_TRUE(lives(first_)) << "what was hoisted keeps it";
  EXPECT_TRUE(lives(second_));
  taken->release();
  EXPECT_TRUE(goes(first_));
  EXPECT_TRUE(goes(second_));
  EXPECT_TRUE(lives(third));
  built_.reset();
  EXPECT_TRUE(goes(third));
}

TEST_F(NodeOwners, OfACloneMadeAfterAHoistByHandleAreNone) {
  add_node(*built_, first_);
  hoist(built_->get()).release();
  graph copy = built_->clone();
  built_.reset();
  EXPECT_TRUE(goes(first_));
  nodes_in(copy).at(0).destroy();
  EXPECT_EQ(copy.held().owners, 0U);
}

TEST_F(NodeOwners, OfExecsMadeAfterAHoistByHandleAreTheirOwn) {
  node const one = add_node(*built_, first_);
  node const two = one.add(kernel_node(add, {}, cells_.data() + 1, 1));
  { graph_exec const before(*built_); }
  hoist(built_->get()).release();
  { graph_exec const after(*built_); }
  EXPECT_TRUE(goes(first_));
  // What kept the first owner is used again, for another.
  for (int i = 0; i < 64; ++i) {
    fate_ptr const fate = make_fate();
    graph_exec exec(*built_);
    escrow::set(exec, two, kernel_node(add, {}, shared(fate, 1), 1));
    escrow::set(exec, one, kernel_node(add, {}, cells_.data(), 1));
    EXPECT_TRUE(lives(fate)) << "that of the other node";
  }
}

}  // namespace
}  // namespace escrow::test
