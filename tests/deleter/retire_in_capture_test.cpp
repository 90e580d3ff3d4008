// Retiring under capture: the owner lives as long as anything that can still launch what was
// captured.
#include <gtest/gtest.h>

#include <vector>

#include "build_graph.hpp"
#include "capturing.hpp"
#include "escrow/deleter/deleter.hpp"
#include "escrow/detail/device.hpp"
#include "handles.hpp"
#include "kernels.hpp"
#include "memory.hpp"
#include "owners.hpp"

namespace escrow {
namespace {

using test::make_fate;
using test::probe;

// A library's function: it enqueues work with a buffer and lets the buffer go, and knows nothing of
// captures.
void library_call(deleter& its, cudaStream_t stream, test::fate_ptr const& fate) {
  probe buffer(fate);
  test::must(test::launch_tiny(stream));
  its.retire(stream, std::move(buffer));
}

class RetireInCapture : public testing::TestWithParam<cudaStreamCaptureMode> {
 protected:
  [[nodiscard]] test::owned_graph captured(test::fate_ptr const& fate) {
    test::capture capturing(stream_, GetParam());
    library_call(deleter_, stream_, fate);
    test::must(capturing.end());
    return std::move(capturing.graph());
  }
  // Whatever has been pushed by now has been reclaimed.
  [[nodiscard]] bool lives(test::fate_ptr const& fate) {
    deleter_.drain();
    return !fate->was_destroyed();
  }

  test::pinned_flag flag_;
  test::owned_stream stream_ = test::make_stream();
  deleter deleter_;
};

INSTANTIATE_TEST_SUITE_P(Modes, RetireInCapture,
                         testing::Values(cudaStreamCaptureModeGlobal,
                                         cudaStreamCaptureModeThreadLocal,
                                         cudaStreamCaptureModeRelaxed));

TEST_P(RetireInCapture, DestroysOnceTheGraphIsGone) {
  auto const fate = make_fate();
  test::owned_graph graph = captured(fate);
  EXPECT_TRUE(lives(fate));
  EXPECT_EQ(deleter_.stats().in_graphs, 1U);
  graph.reset();
  EXPECT_TRUE(fate->wait());
  EXPECT_NE(fate->thread, std::this_thread::get_id()) << "destroyed in the destroy callback";
  EXPECT_EQ(fate->mode, cudaStreamCaptureModeRelaxed);
  deleter_.drain();
  EXPECT_EQ(deleter_.stats().in_graphs, 0U);
  EXPECT_EQ(fate->times(), 1);
}

TEST_P(RetireInCapture, NeitherExecNorCloneLosesItsOwner) {
  auto const fate = make_fate();
  test::owned_graph graph = captured(fate);
  test::owned_graph copy = test::clone(graph);
  test::owned_exec exec = test::instantiate(graph);
  graph.reset();
  EXPECT_TRUE(lives(fate));
  exec.reset();
  EXPECT_TRUE(lives(fate));
  test::owned_exec of_copy = test::instantiate(copy);
  copy.reset();
  EXPECT_TRUE(lives(fate));
  of_copy.reset();
  EXPECT_TRUE(fate->wait());
}

TEST_P(RetireInCapture, AChildGraphKeepsItsOwner) {
  auto const fate = make_fate();
  test::owned_graph parent = test::make_graph();
  {
    test::owned_graph const child = captured(fate);
    test::add_child(parent, child);
  }
  EXPECT_TRUE(lives(fate));
  test::owned_exec exec = test::instantiate(parent);
  parent.reset();
  EXPECT_TRUE(lives(fate));
  exec.reset();
  EXPECT_TRUE(fate->wait());
}

TEST_P(RetireInCapture, LaunchesInFlightKeepTheirOwner) {
  auto const fate = make_fate();
  test::owned_exec exec;
  {
    test::capture capturing(stream_, GetParam());
    test::must(test::launch_wait_flag(stream_, flag_.get()));
    library_call(deleter_, stream_, fate);
    test::must(capturing.end());
    exec = test::instantiate(capturing.graph());
  }
  test::must(cudaGraphLaunch(exec, stream_));
  test::must(cudaGraphLaunch(exec, stream_));
  exec.reset();
  EXPECT_TRUE(lives(fate));
  EXPECT_TRUE(test::stays_false([&] { return fate->was_destroyed(); }));
  flag_.raise();
  EXPECT_TRUE(fate->wait());
  EXPECT_EQ(fate->times(), 1);
}

TEST_P(RetireInCapture, AnUpdateLetsTheOldOwnersGoAndKeepsTheNew) {
  auto const old_fate = make_fate();
  auto const new_fate = make_fate();
  test::owned_graph old_graph = captured(old_fate);
  test::owned_exec exec = test::instantiate(old_graph);
  old_graph.reset();
  {
    test::owned_graph const new_graph = captured(new_fate);
    cudaGraphExecUpdateResultInfo result{};
    test::must(cudaGraphExecUpdate(exec, new_graph, &result));
  }
  EXPECT_TRUE(old_fate->wait());
  EXPECT_TRUE(lives(new_fate));
  exec.reset();
  EXPECT_TRUE(new_fate->wait());
}

TEST_P(RetireInCapture, AForkRetiresToTheGraphOfItsOrigin) {
  auto const fate = make_fate();
  test::owned_stream const branch = test::make_stream();
  test::owned_event const forked = test::make_event();
  test::owned_event const joined = test::make_event();
  test::capture capturing(stream_, GetParam());
  test::must(cudaEventRecord(forked, stream_));
  test::must(cudaStreamWaitEvent(branch, forked, 0));
  library_call(deleter_, branch, fate);
  test::must(cudaEventRecord(joined, branch));
  test::must(cudaStreamWaitEvent(stream_, joined, 0));
  ASSERT_EQ(capturing.end(), cudaSuccess);
  EXPECT_TRUE(lives(fate));
  capturing.graph().reset();
  EXPECT_TRUE(fate->wait());
}

TEST_P(RetireInCapture, AddsNoNode) {
  test::capture capturing(stream_, GetParam());
  test::must(test::launch_tiny(stream_));
  deleter_.retire(stream_, probe(make_fate()));
  test::must(test::launch_tiny(stream_));
  ASSERT_EQ(capturing.end(), cudaSuccess);
  EXPECT_EQ(test::node_count(capturing.graph()), 2U);
  EXPECT_EQ(test::edge_count(capturing.graph()), 1U);
}

TEST_P(RetireInCapture, RetiringElsewhereMeanwhileIsEager) {
  auto const eager = make_fate();
  test::owned_stream const other = test::make_stream();
  test::capture capturing(stream_, GetParam());
  deleter_.retire(other, probe(eager));
  auto const at_once = make_fate();
  deleter_.retire(probe(at_once));
  EXPECT_TRUE(eager->wait());
  EXPECT_TRUE(at_once->wait());
  EXPECT_EQ(capturing.end(), cudaSuccess);
}

TEST_P(RetireInCapture, AnInvalidatedCaptureGivesItsOwnersBackAtItsEnd) {
  auto const fate = make_fate();
  test::capture capturing(stream_, GetParam());
  library_call(deleter_, stream_, fate);
  ASSERT_NE(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_TRUE(lives(fate));
  ASSERT_NE(capturing.end(), cudaSuccess);
  EXPECT_TRUE(fate->wait());
}

TEST_P(RetireInCapture, ManyOwnersOfOneGraphAllComeBackOnce) {
  constexpr int count = 1000;
  std::vector<test::fate_ptr> fates;
  {
    test::capture capturing(stream_, GetParam());
    for (int i = 0; i < count; ++i)
      library_call(deleter_, stream_, fates.emplace_back(make_fate()));
    ASSERT_EQ(capturing.end(), cudaSuccess);
    deleter_.drain();
    EXPECT_EQ(deleter_.stats().in_graphs, static_cast<std::uint64_t>(count));
  }
  for (auto const& fate : fates) EXPECT_TRUE(fate->wait());
  deleter_.drain();
  for (auto const& fate : fates) EXPECT_EQ(fate->times(), 1);
}

TEST_P(RetireInCapture, TheOwnerIsDestroyedWithTheStreamsDeviceCurrent) {
  int devices = 0;
  test::must(cudaGetDeviceCount(&devices));
  if (devices < 2) GTEST_SKIP() << "needs two devices";
  auto const fate = make_fate();
  test::owned_stream elsewhere;
  {
    device_scope const there(1);
    elsewhere = test::make_stream();
  }
  {
    test::capture capturing(elsewhere, GetParam());
    deleter_.retire(elsewhere, probe(fate));  // device 0 is current
    ASSERT_EQ(capturing.end(), cudaSuccess);
  }
  ASSERT_TRUE(fate->wait());
  EXPECT_EQ(fate->device, 1);
}

TEST(RetireToGraph, AHandMadeGraphKeepsItsOwner) {
  deleter its;
  auto const fate = make_fate();
  test::owned_graph graph = test::tiny_graph();
  its.retire(graph.get(), probe(fate));
  its.drain();
  EXPECT_FALSE(fate->was_destroyed());
  graph.reset();
  EXPECT_TRUE(fate->wait());
}

}  // namespace
}  // namespace escrow
