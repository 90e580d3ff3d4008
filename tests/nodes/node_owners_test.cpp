// What a node keeps: until the graph, its clones, execs and launches are gone, or the node changes.
#include "build_graph.hpp"
#include "escrow/core/error.hpp"
#include "node_owners_fixture.hpp"

namespace escrow::test {
namespace {

class NodeOwners : public node_owners_test {};

TEST_F(NodeOwners, GoWithAGraphThatWasNeverInstantiated) {
  add_node(*built_, first_);
  EXPECT_TRUE(lives(first_));
  EXPECT_EQ(built_->held().owners, 1U);
  built_.reset();
  EXPECT_TRUE(goes(first_));
}

TEST_F(NodeOwners, GoWithAGraphWhoseHandleNobodySaw) {
  add_node(*built_, first_);
  built_.reset();
  EXPECT_TRUE(goes(first_));
}

TEST_F(NodeOwners, StayUntilTheLastLaunchOfAnExecThatIsGoneIsDone) {
  add_node(hold_up(*built_), first_);
  std::optional<graph_exec> exec(*built_);
  EXPECT_TRUE(exec->is_bare());
  EXPECT_EQ(exec->held().owners, 1U);
  built_.reset();
  EXPECT_TRUE(lives(first_));
  exec->launch(stream_);
  exec.reset();
  EXPECT_TRUE(stays(first_));
  flag_.raise();
  EXPECT_TRUE(goes(first_));
  EXPECT_EQ(cells_.load(), 1);
}

TEST_F(NodeOwners, StayForPlainExecsAndClones) {
  add_node(*built_, first_);
  owned_graph copy = clone(built_->get());
  built_.reset();
  owned_exec exec = instantiate(copy);
  copy.reset();
  EXPECT_TRUE(lives(first_));
  must(cudaGraphLaunch(exec, stream_));
  must(cudaStreamSynchronize(stream_));
  EXPECT_TRUE(lives(first_));
  exec.reset();
  EXPECT_TRUE(goes(first_));
  EXPECT_EQ(cells_.load(), 1);
}

TEST_F(NodeOwners, OfNodesThatAreAddedWhenTheHandleIsOutStayForPlainExecsToo) {
  cudaGraph_t const handle = built_->get();
  add_node(*built_, first_);
  add_node(*built_, second_);
  owned_exec exec = instantiate(handle);
  built_.reset();
  EXPECT_TRUE(lives(first_));
  exec.reset();
  EXPECT_TRUE(goes(first_));
  EXPECT_TRUE(goes(second_));
}

TEST_F(NodeOwners, StayWithAGraphThatIsDetached) {
  add_node(*built_, first_);
  owned_graph detached;
  *detached.out() = built_->detach();
  built_.reset();
  EXPECT_TRUE(lives(first_));
  detached.reset();
  EXPECT_TRUE(goes(first_));
}

TEST_F(NodeOwners, StayForClonesAndTheirExecs) {
  add_node(*built_, first_);
  std::optional<graph> copy(built_->clone());
  EXPECT_EQ(copy->held().owners, 1U);
  built_.reset();
  std::optional<graph_exec> exec(*copy);
  EXPECT_TRUE(exec->is_bare());
  copy.reset();
  EXPECT_TRUE(lives(first_));
  run(*exec);
  exec.reset();
  EXPECT_TRUE(goes(first_));
  EXPECT_EQ(cells_.load(), 1);
}

TEST_F(NodeOwners, OfAnEmbeddedGraphStayForTheOneAroundIt) {
  {
    graph child(deleter_);
    add_node(child, first_);
    build(*built_).add(child_node(child));
  }
  std::optional<graph_exec> exec(*built_);
  EXPECT_TRUE(exec->is_bare());
  built_.reset();
  EXPECT_TRUE(lives(first_));
  run(*exec);
  exec.reset();
  EXPECT_TRUE(goes(first_));
  EXPECT_EQ(cells_.load(), 1);
}

TEST_F(NodeOwners, OfABodyStayForTheGraphAroundIt) {
  condition const always = build(*built_).make_condition(1);
  add_node(build(*built_).add(if_node(always)).body(), first_);
  std::optional<graph_exec> exec(*built_);
  EXPECT_TRUE(exec->is_bare());
  built_.reset();
  EXPECT_TRUE(lives(first_));
  run(*exec);
  exec.reset();
  EXPECT_TRUE(goes(first_));
  EXPECT_EQ(cells_.load(), 1);
}

TEST_F(NodeOwners, OfABodyThatIsCapturedIntoCountAsWell) {
  condition const always = build(*built_).make_condition(1);
  cudaGraph_t const body = build(*built_).add(if_node(always)).body().get();
  must(cudaStreamBeginCaptureToGraph(stream_, body, nullptr, nullptr, 0,
                                     cudaStreamCaptureModeThreadLocal));
  deleter_.retire(stream_, probe(first_));
  must(launch_add(stream_, cells_.data(), 1));
  cudaGraph_t same = nullptr;
  must(cudaStreamEndCapture(stream_, &same));
  std::optional<graph_exec> exec(*built_);
  EXPECT_TRUE(exec->is_bare()) << "its bodies are known";
  built_.reset();
  EXPECT_TRUE(lives(first_));
  run(*exec);
  exec.reset();
  EXPECT_TRUE(goes(first_));
}

TEST_F(NodeOwners, ThatCanOnlyBeMovedAreMovedIn) {
  std::unique_ptr<int, tells> mine(cells_.data(), tells{first_});
  build(*built_).add(kernel_node(add, {}, std::move(mine), 1));
  EXPECT_EQ(mine, nullptr);  // NOLINT(bugprone-use-after-move)
  EXPECT_TRUE(lives(first_));
  graph_exec exec(*built_);
  run(exec);
  EXPECT_EQ(cells_.load(), 1);
}

TEST_F(NodeOwners, AreTheCallablesThatNodesCall) {
  build(*built_).add(
      host_node([mine = std::make_shared<probe>(first_), cells = cells_.data()] { ++*cells; }));
  std::optional<graph_exec> exec(*built_);
  built_.reset();
  run(*exec);
  run(*exec);
  EXPECT_EQ(cells_.load(), 2);
  EXPECT_TRUE(lives(first_));
  exec.reset();
  EXPECT_TRUE(goes(first_));
}

TEST_F(NodeOwners, OfFillsAndCopiesStayToo) {
  build(*built_)
      .add(memset_node(shared(first_, 0), {.value = 7, .element_bytes = 4, .width = 1}))
      .add(memcpy_node(shared(second_, 1), cells_.data(), sizeof(int)));
  std::optional<graph_exec> exec(*built_);
  built_.reset();
  run(*exec);
  EXPECT_EQ(cells_.load(1), 7);
  EXPECT_TRUE(lives(first_));
  EXPECT_TRUE(lives(second_));
  exec.reset();
  EXPECT_TRUE(goes(first_));
  EXPECT_TRUE(goes(second_));
}

TEST_F(NodeOwners, AreEventsThatAreShared) {
  cudaEvent_t raw = nullptr;
  {
    shared_event const event = shared_event::make();
    raw = event.get();
    build(*built_).add(record_node(event));
  }
  std::optional<graph_exec> exec(*built_);
  EXPECT_TRUE(shared_event::find(raw).has_value());
  built_.reset();
  run(*exec);
  EXPECT_TRUE(shared_event::find(raw).has_value());
  exec.reset();
  deleter_.drain();
  EXPECT_FALSE(shared_event::find(raw).has_value());
}

TEST_F(NodeOwners, OfManyNodesGoOnceEach) {
  constexpr int nodes = 1000;
  std::vector<fate_ptr> fates;
  node last = hold_up(*built_);
  for (int i = 0; i < nodes; ++i) {
    fates.push_back(make_fate());
    last = add_node(last, fates.back());
  }
  EXPECT_EQ(built_->held().owners, static_cast<std::size_t>(nodes));
  std::optional<graph_exec> exec(*built_);
  EXPECT_TRUE(exec->is_bare());
  built_.reset();
  exec->launch(stream_);
  exec.reset();
  EXPECT_TRUE(stays(fates.back()));
  flag_.raise();
  must(cudaStreamSynchronize(stream_));
  for (fate_ptr const& each : fates) EXPECT_TRUE(goes(each));
  EXPECT_EQ(cells_.load(), nodes);
}

TEST_F(NodeOwners, InSeveralPlacesAreCountedOnce) {
  add_node(*built_, first_);
  node const two = add_node(*built_, second_);
  build(*built_).add(child_node(built_->clone()));
  EXPECT_EQ(built_->held().owners, 2U);
  two.destroy();
  EXPECT_EQ(built_->held().owners, 2U) << "the copy has it";
  graph_exec const exec(*built_);
  EXPECT_EQ(exec.held().owners, 2U);
}

TEST_F(NodeOwners, OfADetachedGraphAreNotChangedInAnExec) {
  node const changed = add_node(*built_, first_);
  graph_exec exec(*built_);
  owned_graph detached;
  *detached.out() = built_->detach();
  EXPECT_THROW(escrow::set(exec, changed, kernel_node(add, {}, cells_.data(), 1)), usage_error);
}

TEST_F(NodeOwners, AreRefusedOnceTheirDeleterWasStopped) {
  add_node(*built_, first_);
  deleter_.stop();
  EXPECT_THROW(add_node(*built_, second_), usage_error);
  EXPECT_EQ(second_->times(), 1) << "nobody took it";
  build(*built_).add(kernel_node(add, {}, cells_.data(), 1));
  EXPECT_FALSE(first_->was_destroyed());
  built_.reset();
  EXPECT_TRUE(first_->wait()) << "what a graph owes is reclaimed all the same";
}

TEST_F(NodeOwners, AreKeptByAGraphThatIsBeingCapturedInto) {
  cudaGraph_t const handle = built_->get();
  must(cudaStreamBeginCaptureToGraph(stream_, handle, nullptr, nullptr, 0,
                                     cudaStreamCaptureModeThreadLocal));
  add_node(*built_, first_);
  cudaGraph_t same = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(stream_, &same), cudaSuccess);
  EXPECT_TRUE(lives(first_));
  built_.reset();
  EXPECT_TRUE(goes(first_));
}

}  // namespace
}  // namespace escrow::test
