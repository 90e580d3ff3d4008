// How long a captured slot stays away: until the graph, its clones, execs and launches are gone.
#include "capture_fixture.hpp"
#include "sanitizers.hpp"

namespace escrow::test {
namespace {

class CapturedLifetime : public captured_pool_test {
 protected:
  owned_stream stream = make_stream();
};

TEST_F(CapturedLifetime, TheGraphAloneHoldsTheSlot) {
  block_pool pool = make_pool(1);
  owned_graph graph = captured_work(pool, stream);
  EXPECT_FALSE(is_back(pool));
  graph.reset();
  EXPECT_TRUE(is_back(pool));
  EXPECT_EQ(pool.stats().in_graphs, 0u);
}

TEST_F(CapturedLifetime, TheExecHoldsTheSlotAfterItsGraphIsGone) {
  block_pool pool = make_pool(1);
  owned_graph graph = captured_work(pool, stream);
  owned_exec exec = instantiate(graph);
  graph.reset();
  EXPECT_FALSE(is_back(pool));
  must(cudaGraphLaunch(exec, stream));
  sync(stream);
  EXPECT_FALSE(is_back(pool));
  exec.reset();
  EXPECT_TRUE(comes_back(pool));
}

TEST_F(CapturedLifetime, AnExecDestroyedInFlightHoldsTheSlotUntilItsLaunchEnds) {
  pinned_flag flag;
  block_pool pool = make_pool(1);
  capture captured{stream, cudaStreamCaptureModeGlobal};
  {
    block_lease held = pool.claim(stream);
    must(launch_wait_flag(stream, flag.get()));
    fill(held, stream, 1);
  }
  must(captured.end());
  owned_exec exec = instantiate(captured.graph());
  must(cudaGraphLaunch(exec, stream));
  captured.graph().reset();
  exec.reset();
  EXPECT_TRUE(stays_out(pool));
  flag.raise();
  EXPECT_TRUE(comes_back(pool));
}

TEST_F(CapturedLifetime, ACloneHoldsTheSlot) {
  block_pool pool = make_pool(1);
  owned_graph graph = captured_work(pool, stream);
  owned_graph copy = clone(graph);
  graph.reset();
  EXPECT_FALSE(is_back(pool));
  owned_exec exec = instantiate(copy);
  copy.reset();
  must(cudaGraphLaunch(exec, stream));
  sync(stream);
  EXPECT_EQ(mismatches.load(), 0);
  EXPECT_FALSE(is_back(pool));
  exec.reset();
  EXPECT_TRUE(comes_back(pool));
}

TEST_F(CapturedLifetime, AParentHoldsTheSlotsOfItsChildGraph) {
  block_pool pool = make_pool(1);
  owned_graph child = captured_work(pool, stream);
  owned_graph parent = make_graph();
  add_child(parent, child);
  child.reset();
  EXPECT_FALSE(is_back(pool));
  owned_exec exec = instantiate(parent);
  parent.reset();
  must(cudaGraphLaunch(exec, stream));
  sync(stream);
  EXPECT_FALSE(is_back(pool));
  exec.reset();
  EXPECT_TRUE(comes_back(pool));
}

TEST_F(CapturedLifetime, AnUpdateLetsTheOldSlotGoAndHoldsTheNewOne) {
  block_pool pool = make_pool(2);
  owned_graph first = captured_work(pool, stream, 1);
  owned_exec exec = instantiate(first);
  owned_graph second = captured_work(pool, stream, 2);
  EXPECT_EQ(pool.stats().in_graphs, 2u);
  cudaGraphExecUpdateResultInfo result{};
  must(cudaGraphExecUpdate(exec, second, &result));
  first.reset();
  second.reset();
  EXPECT_TRUE(wait_until([&] { return pool.stats().in_graphs == 1; }));
  must(cudaGraphLaunch(exec, stream));
  sync(stream);
  EXPECT_EQ(mismatches.load(), 0);
  EXPECT_EQ(pool.stats().in_graphs, 1u);
  exec.reset();
  EXPECT_TRUE(wait_until([&] { return pool.stats().in_graphs == 0; }));
}

TEST_F(CapturedLifetime, ACaptureThatIsDroppedGivesTheSlotBack) {
  block_pool pool = make_pool(1);
  { static_cast<void>(captured_work(pool, stream)); }
  EXPECT_TRUE(is_back(pool));
}

TEST_F(CapturedLifetime, AnInvalidatedCaptureGivesTheSlotBackAtItsEnd) {
  block_pool pool = make_pool(1);
  capture captured{stream, cudaStreamCaptureModeGlobal};
  library_work(pool, stream, 1, mismatches);
  invalidate(stream);
  EXPECT_EQ(captured.end(), cudaErrorStreamCaptureInvalidated);
  EXPECT_TRUE(is_back(pool));
}

TEST_F(CapturedLifetime, AStreamDestroyedWhileCapturingGivesTheSlotBack) {
  block_pool pool = make_pool(1);
  owned_stream gone = make_stream();
  must(cudaStreamBeginCapture(gone, cudaStreamCaptureModeGlobal));
  library_work(pool, gone, 1, mismatches);
  gone.reset();
  EXPECT_TRUE(is_back(pool));
}

TEST_F(CapturedLifetime, AGraphCapturedIntoAgainReusesItsSlot) {
  block_pool pool = make_pool(2);
  owned_graph graph = captured_work(pool, stream, 1);
  std::size_t count = 0;
  must(cudaGraphGetNodes(graph, nullptr, &count));
  std::vector<cudaGraphNode_t> nodes(count);
  must(cudaGraphGetNodes(graph, nodes.data(), &count));
  cudaGraphNode_t const last = nodes.back();
  must(
      cudaStreamBeginCaptureToGraph(stream, graph, &last, nullptr, 1, cudaStreamCaptureModeGlobal));
  library_work(pool, stream, 2, mismatches);
  cudaGraph_t same = nullptr;
  must(cudaStreamEndCapture(stream, &same));
  EXPECT_EQ(same, graph.get());
  EXPECT_EQ(pool.stats().in_graphs, 1u);
  EXPECT_EQ(made(), 1);
  owned_exec exec = instantiate(graph);
  must(cudaGraphLaunch(exec, stream));
  sync(stream);
  EXPECT_EQ(mismatches.load(), 0);
  graph.reset();
  exec.reset();
  EXPECT_TRUE(wait_until([&] { return pool.stats().in_graphs == 0; }));
}

TEST_F(CapturedLifetime, AGraphCapturedIntoAgainBesideItsNodesGetsAnotherSlot) {
  block_pool pool = make_pool(2);
  owned_graph graph = captured_work(pool, stream, 1);
  must(cudaStreamBeginCaptureToGraph(stream, graph, nullptr, nullptr, 0,
                                     cudaStreamCaptureModeGlobal));
  library_work(pool, stream, 2, mismatches);
  cudaGraph_t same = nullptr;
  must(cudaStreamEndCapture(stream, &same));
  EXPECT_EQ(pool.stats().in_graphs, 2u);
  expect_right_results(graph, stream);
}

TEST_F(CapturedLifetime, ALeaseMayOutliveItsCaptureAndThenTheGraphHoldsTheSlot) {
  block_pool pool = make_pool(1);
  capture captured{stream, cudaStreamCaptureModeGlobal};
  block_lease held = pool.claim(stream);
  fill(held, stream, 1);
  must(captured.end());
  EXPECT_FALSE(is_back(pool));
  held.release();
  EXPECT_FALSE(is_back(pool));
  captured.graph().reset();
  EXPECT_TRUE(is_back(pool));
}

TEST_F(CapturedLifetime, ALeaseMayOutliveItsGraphAndThenHoldsTheSlotItself) {
  pinned_flag flag;
  block_pool pool = make_pool(1);
  owned_stream const other = make_stream();
  capture captured{stream, cudaStreamCaptureModeGlobal};
  block_lease held = pool.claim(stream);
  must(captured.end());
  captured.graph().reset();
  EXPECT_FALSE(is_back(pool));
  must(launch_wait_flag(stream, flag.get()));  // eager work after the capture, on the same lease
  fill(held, stream, 4);
  held.release();
  block_lease next = pool.claim(other);
  check(next, other, 4, mismatches);
  EXPECT_TRUE(stays_false([&] { return is_idle(other); }));
  flag.raise();
  sync(other);
  EXPECT_EQ(mismatches.load(), 0);
}

TEST_F(CapturedLifetime, EagerWorkAfterTheCaptureIsWaitedForWhenTheGraphIsGone) {
  pinned_flag flag;
  owned_stream const other = make_stream();
  block_pool pool = make_pool(1);
  capture captured{stream, cudaStreamCaptureModeGlobal};
  block_lease held = pool.claim(stream);
  must(captured.end());
  must(launch_wait_flag(stream, flag.get()));
  fill(held, stream, 4);
  held.release();
  captured.graph().reset();
  ASSERT_TRUE(drained());
  block_lease next = pool.claim(other);
  check(next, other, 4, mismatches);
  EXPECT_TRUE(stays_false([&] { return is_idle(other); }));
  flag.raise();
  sync(other);
  EXPECT_EQ(mismatches.load(), 0);
}

TEST_F(CapturedLifetime, ASlotComesAndGoesBetweenEagerUseAndManyGraphs) {
  block_pool pool = make_pool(1);
  for (int i = 0; i < 200; ++i) {
    library_work(pool, stream, i, mismatches);
    sync(stream);
    owned_graph graph = captured_work(pool, stream, i);
    {
      owned_exec const exec = instantiate(graph);
      must(cudaGraphLaunch(exec, stream));
      sync(stream);
    }
    graph.reset();
    ASSERT_TRUE(wait_until([&] { return pool.stats().in_graphs == 0; }));
  }
  EXPECT_EQ(mismatches.load(), 0);
  EXPECT_EQ(made(), 1);
}

// The worker may be just taking it from the graph to its bin.
TEST_F(CapturedLifetime, ASlotIsThereAtOnceWhenItsGraphIsGone) {
  constexpr int rounds = is_sanitized ? 10'000 : 100'000;
  block_pool pool = make_pool(1);
  owned_stream const one = make_stream();
  owned_stream const other = make_stream();
  int missed = 0;
  for (int i = 0; i < rounds; ++i) {
    {
      capture captured{one, cudaStreamCaptureModeThreadLocal};
      if (auto claimed = pool.try_claim(one)) {
        claimed->release();
      } else {
        ++missed;
      }
      must(captured.end());
    }
    if (!pool.try_claim(other)) ++missed;
    sync(other);
  }
  EXPECT_EQ(missed, 0);
}

}  // namespace
}  // namespace escrow::test
