// Whose execs are bare, and what each then holds by itself: captures, graphs built by hand, graphs
// captured in pieces, clones.
#include <optional>

#include "hoist_fixture.hpp"

namespace escrow::test {
namespace {

class BareGraph : public hoist_test {
 protected:
  // Instantiates `source` and ends it.
  template <class Graph>
  [[nodiscard]] static std::optional<graph_exec> exec_of(Graph source) {
    return std::optional<graph_exec>(std::in_place, source);
  }
  // A hand-built graph of the caller's own with one node.
  [[nodiscard]] owned_graph by_hand() { return chain({add_call(cells.data(), 1)}); }
  // The nodes that nothing depends on yet.
  [[nodiscard]] static std::vector<cudaGraphNode_t> all_nodes(cudaGraph_t graph) {
    std::size_t count = node_count(graph);
    std::vector<cudaGraphNode_t> nodes(count);
    must(cudaGraphGetNodes(graph, nodes.data(), &count));
    return nodes;
  }
  // Captures `taken` into `graph` behind all that is there.
  void add_piece(cudaGraph_t graph, cargo& taken) {
    std::vector<cudaGraphNode_t> const before = all_nodes(graph);
    capture_into(
        graph, [&](cudaStream_t stream) { load(taken, stream); }, before.data(), before.size());
  }
};

TEST_F(BareGraph, AnExecOfAnEscrowCaptureIsBare) {
  cargo taken = make_cargo();
  auto exec = exec_of(captured(taken));
  expect_bare_sole_holder(exec, taken);
}

TEST_F(BareGraph, AnExecOfACallersOwnCaptureIsBare) {
  cargo taken = make_cargo();
  auto exec = exec_of(captured_plainly(taken));
  expect_bare_sole_holder(exec, taken);
}

TEST_F(BareGraph, AnExecOfACallersOwnCaptureOnSeveralStreamsIsBare) {
  cargo taken = make_cargo();
  cargo of_branch = make_cargo();
  test::capture open{one, cudaStreamCaptureModeGlobal};
  load(taken, one);
  order(one, two);
  load(of_branch, two);
  order(two, one);
  must(open.end());
  auto exec = exec_of(std::move(open.graph()));
  EXPECT_TRUE(is_kept(of_branch));
  expect_bare_sole_holder(exec, taken);
  EXPECT_TRUE(comes_back(of_branch));
}

TEST_F(BareGraph, AnExecOfAGraphBuiltByHandIsBare) {
  cargo taken = make_cargo();
  owned_graph source = by_hand();
  load_owner_by_hand(taken, source);
  auto exec = exec_of(std::move(source));
  expect_bare_sole_holder(exec, taken);
}

TEST_F(BareGraph, AnExecOfThousandsOfOwnersIsBareAndEachComesBackOnce) {
  constexpr int count = 4096;
  auto const gone = std::make_shared<std::atomic<int>>(0);
  owned_graph source = by_hand();
  for (int i = 0; i < count; ++i) {
    std::shared_ptr<void> owner(nullptr, [gone](void*) {
      gone->fetch_add(1, std::memory_order_release);  // for the test that reads it
    });
    worker->retire(source.get(), std::move(owner));
  }
  auto exec = exec_of(std::move(source));
  EXPECT_TRUE(exec->is_bare());
  EXPECT_TRUE(no_user_object_is_left());
  exec->launch(two);
  EXPECT_EQ(gone->load(std::memory_order_acquire), 0);
  exec.reset();
  EXPECT_TRUE(wait_until([&] { return gone->load(std::memory_order_acquire) == count; }));
}

TEST_F(BareGraph, AnExecOfNothingThatIsHeldIsBareAlsoAmongGraphsThatHoldSomething) {
  cargo taken = make_cargo();
  graph const other = captured(taken);
  graph_exec exec(captured_empty_handed());
  EXPECT_TRUE(exec.is_bare());
  exec.launch(two);
  sync(two);
  EXPECT_EQ(cells.load(), 1);
}

TEST_F(BareGraph, InPiecesHoldsOnlyThePiecesThatWereThereWhenItWasInstantiated) {
  cargo early = make_cargo();
  cargo late = make_cargo();
  std::optional<owned_graph> source(by_hand());
  add_piece(*source, early);
  std::optional<graph_exec> of_one(source->get());
  add_piece(*source, late);
  std::optional<graph_exec> of_both(source->get());
  source.reset();
  EXPECT_TRUE(of_one->is_bare());
  EXPECT_TRUE(of_both->is_bare());
  EXPECT_TRUE(no_user_object_is_left());
  of_one->launch(one);
  of_both->launch(two);
  sync_all();
  of_both.reset();
  EXPECT_TRUE(comes_back(late)) << "the first exec has nothing of the second piece";
  expect_bare_sole_holder(of_one, early);
}

TEST_F(BareGraph, InPiecesTheLaterExecHoldsTheEarlierPieceToo) {
  cargo early = make_cargo();
  cargo late = make_cargo();
  std::optional<owned_graph> source(by_hand());
  add_piece(*source, early);
  std::optional<graph_exec> of_one(source->get());
  add_piece(*source, late);
  std::optional<graph_exec> of_both(source->get());
  of_one.reset();
  source.reset();
  EXPECT_TRUE(stays_kept(early));
  expect_bare_sole_holder(of_both, late);
  EXPECT_TRUE(comes_back(early));
}

TEST_F(BareGraph, InPiecesTheGraphHoldsThePieceThatNoExecWasMadeOf) {
  cargo early = make_cargo();
  cargo late = make_cargo();
  std::optional<owned_graph> source(by_hand());
  add_piece(*source, early);
  auto exec = std::optional<graph_exec>(source->get());
  add_piece(*source, late);
  EXPECT_TRUE(is_kept(late));
  source.reset();
  EXPECT_TRUE(comes_back(late));
  expect_bare_sole_holder(exec, early);
}

TEST_F(BareGraph, MayBeCapturedByEscrowAndThenInPieces) {
  cargo early = make_cargo();
  cargo late = make_cargo();
  std::optional<graph> source(captured(early));
  add_piece(source->get(), late);
  auto exec = std::optional<graph_exec>(*source);
  source.reset();
  EXPECT_TRUE(is_kept(early));
  expect_bare_sole_holder(exec, late);
  EXPECT_TRUE(comes_back(early));
}

TEST_F(BareGraph, OfACaptureThatIsNotCompleteHarmsNoCapture) {
  cargo taken = make_cargo();
  test::capture open{one, cudaStreamCaptureModeGlobal};
  load(taken, one);
  cudaGraph_t const unfinished = open.info().graph;
  static_cast<void>(graph_exec(unfinished));
  EXPECT_TRUE(open.is_active());
  ASSERT_EQ(open.end(), cudaSuccess);
  auto exec = exec_of(std::move(open.graph()));
  expect_bare_sole_holder(exec, taken);
}

TEST_F(BareGraph, AnExecOfACloneIsBareAndHoldsAsTheOriginalDoes) {
  cargo taken = make_cargo();
  std::optional<graph> original(captured(taken));
  std::optional<graph> copy(original->clone());
  auto exec = std::optional<graph_exec>(*copy);
  original.reset();
  EXPECT_TRUE(stays_kept(taken));
  copy.reset();
  expect_bare_sole_holder(exec, taken);
}

TEST_F(BareGraph, AnExecOfTheOriginalIsBareAndTheCloneHoldsOn) {
  cargo taken = make_cargo();
  std::optional<graph> original(captured(taken));
  auto exec = std::optional<graph_exec>(*original);
  std::optional<graph> copy(original->clone());
  original.reset();
  exec.reset();
  EXPECT_TRUE(stays_kept(taken));
  auto of_copy = std::optional<graph_exec>(*copy);
  copy.reset();
  expect_bare_sole_holder(of_copy, taken);
}

TEST_F(BareGraph, ACloneOfACloneOfAForeignCaptureIsBare) {
  cargo taken = make_cargo();
  owned_graph original = captured_plainly(taken);
  graph const first(original.release());
  std::optional<graph> second(first.clone().clone());
  auto exec = std::optional<graph_exec>(*second);
  EXPECT_TRUE(exec->is_bare());
  second.reset();
  exec->launch(two);
  exec.reset();
  EXPECT_TRUE(stays_kept(taken)) << "the original is still there";
}

TEST_F(BareGraph, WhatACloneTakesUpLaterIsItsOwn) {
  cargo shared = make_cargo();
  cargo own = make_cargo();
  std::optional<graph> original(captured(shared));
  std::optional<graph> copy(original->clone());
  add_piece(copy->get(), own);
  auto of_copy = std::optional<graph_exec>(*copy);
  copy.reset();
  EXPECT_TRUE(of_copy->is_bare());
  of_copy->launch(two);
  of_copy.reset();
  EXPECT_TRUE(comes_back(own));
  EXPECT_TRUE(stays_kept(shared));
  auto of_original = std::optional<graph_exec>(*original);
  original.reset();
  expect_bare_sole_holder(of_original, shared);
}

}  // namespace
}  // namespace escrow::test
