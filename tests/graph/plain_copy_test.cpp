// Copies that a caller makes with CUDA's own calls: their execs keep what they use, without being
// bare.
#include <optional>

#include "hoist_fixture.hpp"

namespace escrow::test {
namespace {

class PlainCopy : public hoist_test {
 protected:
  // A parent with a child node, both made with plain CUDA calls.
  struct plain_parent {
    owned_graph graph = make_graph();
    cudaGraph_t embedded;
    explicit plain_parent(cudaGraph_t child) : embedded(embedded_graph(add_child(graph, child))) {}
  };
};

TEST_F(PlainCopy, AnExecOfAPlainCloneIsRight) {
  cargo taken = make_cargo();
  std::optional<graph> original(captured(taken));
  owned_graph copy = test::clone(original->get());
  std::optional<graph_exec> exec(copy.get());
  original.reset();
  EXPECT_TRUE(is_kept(taken));
  copy.reset();
  expect_sole_holder(exec, taken);
}

TEST_F(PlainCopy, AnExecOfAPlainCloneInFlightGivesBackAfterTheLaunch) {
  cargo taken = make_cargo();
  {
    graph const original = captured_behind_flag(taken);
    owned_graph const copy = test::clone(original.get());
    graph_exec exec(copy.get());
    exec.launch(two);
  }
  EXPECT_TRUE(stays_kept(taken));
  flag.raise();
  EXPECT_TRUE(comes_back(taken));
}

TEST_F(PlainCopy, AnExecOfAPlainCloneThatWasMadeAfterAnExecOfTheOriginalIsRight) {
  cargo taken = make_cargo();
  std::optional<graph> original(captured(taken));
  std::optional<graph_exec> of_original(*original);
  std::optional<graph_exec> exec(test::clone(original->get()).get());
  original.reset();
  of_original.reset();
  expect_sole_holder(exec, taken);
}

TEST_F(PlainCopy, AnExecOfAPlainChildNodeIsRight) {
  cargo taken = make_cargo();
  std::optional<graph> child(captured(taken));
  std::optional<plain_parent> parent(child->get());
  child.reset();
  std::optional<graph_exec> exec(parent->graph.get());
  parent.reset();
  expect_sole_holder(exec, taken);
}

TEST_F(PlainCopy, OfAParentIsRight) {
  cargo taken = make_cargo();
  cargo of_child = make_cargo();
  std::optional<graph> parent(captured(taken));
  parent->add_child(captured(of_child));
  owned_graph copy = test::clone(parent->get());
  parent.reset();
  std::optional<graph_exec> exec(copy.get());
  copy.reset();
  EXPECT_TRUE(is_kept(of_child));
  expect_sole_holder(exec, taken);
  EXPECT_TRUE(comes_back(of_child));
}

TEST_F(PlainCopy, ThatOutlivesItsExecsStillHolds) {
  cargo taken = make_cargo();
  owned_graph copy = test::clone(captured(taken).get());
  for (int i = 0; i < 3; ++i) {
    graph_exec exec(copy.get());
    exec.launch(two);
    sync(two);
  }
  EXPECT_TRUE(stays_kept(taken));
  copy.reset();
  EXPECT_TRUE(comes_back(taken));
  EXPECT_EQ(cells.load(), 3);
}

TEST_F(PlainCopy, HoldsOnWhileExecsOfTheOriginalComeAndGo) {
  cargo taken = make_cargo();
  std::optional<graph> original(captured(taken));
  owned_graph copy = test::clone(original->get());  // with what the original held one by one
  for (int i = 0; i < 3; ++i) graph_exec(*original).launch(two);
  owned_graph second = test::clone(original->get());  // with what it holds as one
  sync(two);
  original.reset();
  copy.reset();
  EXPECT_TRUE(stays_kept(taken));
  second.reset();
  EXPECT_TRUE(comes_back(taken));
}

TEST_F(PlainCopy, ThatIsTheLastToHoldAndWasMadeFirstGivesBackAlone) {
  cargo taken = make_cargo();
  std::optional<graph> original(captured(taken));
  owned_graph copy = test::clone(original->get());
  std::optional<graph_exec> exec(*original);
  original.reset();
  exec.reset();
  EXPECT_TRUE(stays_kept(taken));
  copy.reset();
  EXPECT_TRUE(comes_back(taken));
}

TEST_F(PlainCopy, ThatTookUpMoreLaterIsRight) {
  // That it is a copy is more than Escrow can notice then, and does no harm.
  cargo taken = make_cargo();
  cargo late = make_cargo();
  owned_graph copy = test::clone(captured(taken).get());
  capture_into(copy, [&](cudaStream_t stream) { load(late, stream); });
  std::optional<graph_exec> exec(copy.get());
  copy.reset();
  EXPECT_TRUE(is_kept(late));
  expect_sole_holder(exec, taken);
  EXPECT_TRUE(comes_back(late));
}

TEST_F(PlainCopy, ClonedByEscrowIsRight) {
  cargo taken = make_cargo();
  std::optional<graph> copy(test::clone(captured(taken).get()).release());
  std::optional<graph> second(copy->clone());
  copy.reset();
  std::optional<graph_exec> exec(*second);
  second.reset();
  expect_sole_holder(exec, taken);
}

TEST_F(PlainCopy, AddedAsAChildByEscrowIsRight) {
  cargo taken = make_cargo();
  std::optional<graph> parent(std::in_place);
  parent->add_child(graph(test::clone(captured(taken).get()).release()));
  std::optional<graph_exec> exec(*parent);
  parent.reset();
  expect_sole_holder(exec, taken);
}

}  // namespace
}  // namespace escrow::test
