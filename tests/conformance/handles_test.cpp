// SPDX-License-Identifier: Apache-2.0
// Handles that are given again: whoever gets one has something new. Whether and when CUDA gives one
// again is not promised, so this holds for both.
#include <set>

#include "graph_nodes.hpp"

namespace escrow::test {
namespace {

unsigned long long id_of(cudaStream_t stream) {
  unsigned long long id = 0;
  must(cudaStreamGetId(stream, &id));
  return id;
}

TEST(GivenAgain, AStreamHasAnIdThatNoOtherEverHad) {
  std::set<unsigned long long> ids;
  constexpr std::size_t rounds = 100;
  for (std::size_t i = 0; i < rounds; ++i) ids.insert(id_of(make_stream()));
  EXPECT_EQ(ids.size(), rounds);
}

class BesideBlockedWork : public testing::Test {
 protected:
  void SetUp() override {  // the first launch of a kernel may block by itself
    raised.raise();
    must(launch_wait_flag(blocked, raised.get()));
    must(launch_add(blocked, cells.data(), 1));
    must(cudaStreamSynchronize(blocked));
    cells.store(0, 0);
    must(launch_wait_flag(blocked, flag.get()));
  }
  void TearDown() override { flag.raise(); }

  pinned_flag raised;
  pinned_flag flag;
  pinned_ints cells{2};
  owned_stream blocked = make_stream();
};

// Whether its work waits for that of the destroyed one is not promised: on an H100 it does.
TEST_F(BesideBlockedWork, AStreamMadeWhenOneWithWorkWasDestroyedIsAnotherAndTheWorkGoesOn) {
  owned_event const behind = make_event();
  must(launch_add(blocked, cells.data(), 1));
  must(cudaEventRecord(behind, blocked));
  unsigned long long const destroyed = id_of(blocked);
  blocked.reset();
  owned_stream const fresh = make_stream();
  EXPECT_GT(id_of(fresh), destroyed);
  EXPECT_EQ(cudaStreamQuery(fresh), cudaSuccess);
  must(launch_add(fresh, cells.data() + 1, 1));
  EXPECT_EQ(cudaEventQuery(behind), cudaErrorNotReady) << "the work goes on";
  flag.raise();
  EXPECT_EQ(cudaEventSynchronize(behind), cudaSuccess);
  must(cudaStreamSynchronize(fresh));
  EXPECT_EQ(cells.load(), 1);
  EXPECT_EQ(cells.load(1), 1);
}

TEST_F(BesideBlockedWork, AnEventMadeWhenOneThatWasRecordedIsDestroyedIsOneThatWasNever) {
  owned_event event = make_event();
  owned_stream const other = make_stream();
  for (int i = 0; i < 3; ++i) {
    must(cudaEventRecord(event, blocked));
    EXPECT_EQ(cudaEventQuery(event), cudaErrorNotReady);
    event.reset();
    event = make_event();
    EXPECT_EQ(cudaEventQuery(event), cudaSuccess);
    must(cudaStreamWaitEvent(other, event, 0));
    EXPECT_EQ(cudaStreamQuery(other), cudaSuccess);
  }
}

TEST_F(BesideBlockedWork, AnExecMadeWhenOneInFlightIsDestroyedRunsItsOwnGraphAndDoesNotWait) {
  owned_exec exec;
  for (int i = 0; i < 3; ++i) {
    owned_graph const first = make_graph();
    add_kernel(first, add_call(cells.data(), 1));
    exec = instantiate(first);
    must(cudaGraphLaunch(exec, blocked));
    exec.reset();
    owned_graph const second = make_graph();
    add_kernel(second, add_call(cells.data() + 1, 1));
    exec = instantiate(second);
    owned_stream const other = make_stream();
    run(exec, other);
    EXPECT_EQ(cells.load(1), i + 1);
  }
  EXPECT_EQ(cells.load(), 0);
  flag.raise();
  must(cudaStreamSynchronize(blocked));
  EXPECT_EQ(cells.load(), 3);
}

TEST(GivenAgain, AGraphIsEmptyAndHoldsNoneOfTheObjectsOfTheOneBefore) {
  for (int i = 0; i < 3; ++i) {
    witness seen;
    {
      owned_graph const graph = tiny_graph();
      seen.move_to(graph);
    }
    EXPECT_TRUE(seen.ran_here());
    owned_graph const fresh = make_graph();
    std::size_t nodes = 0;
    must(cudaGraphGetNodes(fresh, nullptr, &nodes));
    EXPECT_EQ(nodes, 0U);
  }
}

TEST(GivenAgain, ADestroyedNodesHandleIsNoNodeOfTheGraph) {
  owned_graph const graph = make_graph();
  cudaGraphNode_t const kept = add_kernel(graph, tiny_call());
  for (int i = 0; i < 3; ++i) {
    must(cudaGraphDestroyNode(add_kernel(graph, tiny_call(), kept)));
    cudaGraphNode_t const fresh = add_kernel(graph, tiny_call());
    std::size_t before = 1;
    must(cudaGraphNodeGetDependencies(fresh, nullptr, nullptr, &before));
    EXPECT_EQ(before, 0U) << "it depends on nothing";
    must(cudaGraphDestroyNode(fresh));
  }
}

}  // namespace
}  // namespace escrow::test
