// Executable graphs: launching, updating, and an end that harms no capture.
#include "escrow/graph/graph_exec.hpp"

#include <gtest/gtest.h>

#include <thread>
#include <type_traits>
#include <utility>

#include "build_graph.hpp"
#include "capturing.hpp"
#include "escrow/core/error.hpp"
#include "escrow/deleter/deleter.hpp"
#include "handles.hpp"
#include "kernels.hpp"
#include "memory.hpp"
#include "owner.hpp"

namespace escrow {
namespace {

static_assert(!std::is_copy_constructible_v<graph_exec> && !std::is_copy_assignable_v<graph_exec>);
static_assert(std::is_nothrow_move_constructible_v<graph_exec>);
static_assert(std::is_nothrow_move_assignable_v<graph_exec>);
static_assert(!std::is_convertible_v<cudaGraph_t, graph_exec>, "instantiating must be said");

class GraphExec : public testing::Test {
 protected:
  test::pinned_flag flag_;
  test::pinned_ints cell_;
  test::owned_stream stream_ = test::make_stream();
  test::owned_stream other_ = test::make_stream();
  deleter deleter_;
  test::watched_owner watched_;

  [[nodiscard]] bool lives() {
    deleter_.drain();
    return !watched_.is_gone();
  }
  [[nodiscard]] graph adding(int value) {
    return graph(test::chain({test::add_call(cell_.data(), value)}).release());
  }
  void sync() { test::must(cudaStreamSynchronize(stream_)); }
};

TEST_F(GraphExec, RunsTheGraphAtEachLaunch) {
  graph_exec exec(adding(2));
  exec.upload(stream_);
  for (int i = 0; i < 5; ++i) exec.launch(stream_);
  sync();
  EXPECT_EQ(cell_.load(), 10);
}

TEST_F(GraphExec, TakesAGraphThatSomebodyElseCaptured) {
  test::capture capturing(stream_, cudaStreamCaptureModeGlobal);
  test::must(test::launch_add(stream_, cell_.data(), 4));
  ASSERT_EQ(capturing.end(), cudaSuccess);
  graph_exec exec(capturing.graph().get());
  capturing.graph().reset();
  exec.launch(stream_);
  sync();
  EXPECT_EQ(cell_.load(), 4);
}

TEST_F(GraphExec, OutlivesItsGraphWithWhatThatHeld) {
  graph source = adding(1);
  deleter_.retire(source.get(), watched_.owner());
  graph_exec exec(source);
  source = graph();
  EXPECT_TRUE(lives());
  exec.launch(stream_);
  sync();
  EXPECT_TRUE(lives());
  exec = graph_exec(adding(1));
  EXPECT_TRUE(watched_.wait());
}

TEST_F(GraphExec, MayEndWithLaunchesInFlight) {
  {
    graph source(test::chain({test::wait_flag_call(flag_.get()), test::add_call(cell_.data(), 1)})
                     .release());
    deleter_.retire(source.get(), watched_.owner());
    graph_exec exec(source);
    exec.launch(stream_);
    exec.launch(stream_);
  }
  EXPECT_TRUE(test::stays_false([this] { return watched_.is_gone(); }));
  EXPECT_EQ(cell_.load(), 0);
  flag_.raise();
  EXPECT_TRUE(watched_.wait());
  sync();
  EXPECT_EQ(cell_.load(), 2);
}

TEST_F(GraphExec, IsNullOnceMovedFrom) {
  graph_exec first(adding(1));
  cudaGraphExec_t const handle = first.get();
  graph_exec second = std::move(first);
  EXPECT_EQ(first.get(), nullptr);  // NOLINT(bugprone-use-after-move): that is the question
  EXPECT_EQ(second.get(), handle);
  graph_exec third(adding(1));
  third = std::move(second);
  EXPECT_EQ(second.get(), nullptr);  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(third.get(), handle);
  graph_exec& same = third;
  third = std::move(same);
  EXPECT_EQ(third.get(), handle);
}

TEST_F(GraphExec, LetsGoOfWhatItHeldWhenAssignedAnother) {
  graph source = adding(1);
  deleter_.retire(source.get(), watched_.owner());
  graph_exec it(source);
  source = graph();
  graph_exec other(adding(1));
  it = std::move(other);
  EXPECT_TRUE(watched_.wait()) << "the moved-from exec keeps what the other held";
}

TEST_F(GraphExec, AnUpdateRunsTheNewGraphAndLetsTheOldGo) {
  graph old_graph = adding(1);
  deleter_.retire(old_graph.get(), watched_.owner());
  graph_exec exec(old_graph);
  old_graph = graph();
  test::watched_owner of_new;
  {
    graph const new_graph = adding(100);
    deleter_.retire(new_graph.get(), of_new.owner());
    exec.update(new_graph);
  }
  EXPECT_TRUE(watched_.wait());
  exec.launch(stream_);
  sync();
  EXPECT_EQ(cell_.load(), 100);
  deleter_.drain();
  EXPECT_FALSE(of_new.is_gone());
}

TEST_F(GraphExec, AnUpdateWithALaunchInFlightLetsTheOldGoAfterIt) {
  graph old_graph(test::chain({test::wait_flag_call(flag_.get())}).release());
  deleter_.retire(old_graph.get(), watched_.owner());
  graph_exec exec(old_graph);
  exec.launch(stream_);
  old_graph = graph();
  exec.update(graph(test::tiny_graph().release()));
  EXPECT_TRUE(test::stays_false([this] { return watched_.is_gone(); }));
  flag_.raise();
  EXPECT_TRUE(watched_.wait());
}

TEST_F(GraphExec, AnUpdateThatDoesNotFitIsAnErrorAndChangesNothing) {
  graph source = adding(1);
  deleter_.retire(source.get(), watched_.owner());
  graph_exec exec(source);
  source = graph();
  graph const longer(
      test::chain({test::add_call(cell_.data(), 7), test::add_call(cell_.data(), 7)}).release());
  EXPECT_THROW(exec.update(longer), cuda_error);
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  EXPECT_TRUE(lives());
  exec.launch(stream_);
  sync();
  EXPECT_EQ(cell_.load(), 1);
}

TEST_F(GraphExec, LaunchingIntoACaptureIsAnError) {
  graph_exec exec(adding(1));
  test::capture const capturing(stream_, cudaStreamCaptureModeThreadLocal);
  try {
    exec.launch(stream_);
    FAIL() << "launched";
  } catch (cuda_error const& error) {
    EXPECT_EQ(error.status(), cudaErrorStreamCaptureUnsupported);
    EXPECT_STREQ(error.api(), "cudaGraphLaunch");
  }
}

TEST_F(GraphExec, OfNothingIsAnError) {
  EXPECT_THROW(graph_exec(cudaGraph_t{nullptr}), cuda_error);
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
}

TEST_F(GraphExec, IsMadeAndDestroyedWhileItsOwnThreadCaptures) {
  graph const source = adding(1);
  for (cudaStreamCaptureMode const mode :
       {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal,
        cudaStreamCaptureModeRelaxed}) {
    test::capture capturing(other_, mode);
    {
      graph_exec exec(source);
      exec.launch(stream_);
    }
    EXPECT_EQ(capturing.end(), cudaSuccess);
  }
  sync();
}

TEST_F(GraphExec, IsDestroyedWhileAnotherThreadCapturesInGlobalMode) {
  constexpr int rounds = 200;
  graph const source = adding(1);
  test::capture capturing(other_, cudaStreamCaptureModeGlobal);
  std::thread([&] {
    for (int i = 0; i < rounds; ++i) {
      graph_exec exec(source);
      exec.launch(stream_);
    }
  }).join();
  EXPECT_EQ(capturing.end(), cudaSuccess);
  sync();
  EXPECT_EQ(cell_.load(), rounds);
}

}  // namespace
}  // namespace escrow
