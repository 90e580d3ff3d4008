// One user object on several graphs and execs: each has a count of its own, under the same handle
// (cuda-facts.md, sections 1 and 3).
#include <gtest/gtest.h>

#include "build_graph.hpp"
#include "handles.hpp"
#include "memory.hpp"
#include "witness.hpp"

namespace escrow::test {
namespace {

// A graph that holds the one reference to a user object whose handle the test keeps.
class SharedReference : public testing::Test {
 protected:
  SharedReference() { must(cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove)); }
  // Takes the object off `from` and puts it back, as one does around an instantiation.
  void take_off_and_put_back(cudaGraph_t from) {
    ASSERT_EQ(cudaUserObjectRetain(object, 1), cudaSuccess);
    ASSERT_EQ(cudaGraphReleaseUserObject(from, object, 1), cudaSuccess);
    EXPECT_FALSE(seen.ran());
    ASSERT_EQ(cudaGraphRetainUserObject(from, object, 1, cudaGraphUserObjectMove), cudaSuccess);
  }

  witness seen;
  pinned_flag flag;
  owned_stream stream = make_stream();
  owned_graph graph = tiny_graph();
  cudaUserObject_t object = seen.make();
};

TEST_F(SharedReference, ReleasedFromTheOriginalStaysWithTheClone) {
  owned_graph copy = clone(graph);
  ASSERT_EQ(cudaGraphReleaseUserObject(graph, object, 1), cudaSuccess);
  graph.reset();
  EXPECT_FALSE(seen.ran());
  copy.reset();
  EXPECT_TRUE(seen.ran_here());
}

TEST_F(SharedReference, IsReleasedFromTheCloneUnderTheSameHandle) {
  owned_graph const copy = clone(graph);
  graph.reset();
  EXPECT_FALSE(seen.ran());
  ASSERT_EQ(cudaGraphReleaseUserObject(copy, object, 1), cudaSuccess);
  EXPECT_TRUE(seen.ran_here());
}

TEST_F(SharedReference, IsReleasedFromEachEmbeddedCopyUnderTheSameHandle) {
  owned_graph const parent = make_graph();
  cudaGraph_t const first = embedded_graph(add_child(parent, graph));
  cudaGraph_t const second = embedded_graph(add_child(parent, graph));
  graph.reset();
  ASSERT_EQ(cudaGraphReleaseUserObject(first, object, 1), cudaSuccess);
  EXPECT_FALSE(seen.ran());
  ASSERT_EQ(cudaGraphReleaseUserObject(second, object, 1), cudaSuccess);
  EXPECT_TRUE(seen.ran_here());
}

TEST_F(SharedReference, IsReleasedFromTheEmbeddedGraphsOfAClonedParent) {
  owned_graph parent = make_graph();
  add_child(parent, graph);
  graph.reset();
  owned_graph const copy = clone(parent);
  parent.reset();
  std::size_t count = 1;
  cudaGraphNode_t node = nullptr;
  must(cudaGraphGetNodes(copy, &node, &count));
  EXPECT_FALSE(seen.ran());
  ASSERT_EQ(cudaGraphReleaseUserObject(embedded_graph(node), object, 1), cudaSuccess);
  EXPECT_TRUE(seen.ran_here());
}

TEST_F(SharedReference, ReleasedFromTheGraphStaysWithTheExec) {
  owned_exec exec = instantiate(graph);
  ASSERT_EQ(cudaGraphReleaseUserObject(graph, object, 1), cudaSuccess);
  EXPECT_FALSE(seen.ran());
  exec.reset();
  EXPECT_TRUE(seen.ran_here());
}

TEST_F(SharedReference, TakenOffAndPutBackAnyNumberOfTimesIsStillOne) {
  for (int i = 0; i < 100; ++i) take_off_and_put_back(graph);
  ASSERT_EQ(cudaGraphReleaseUserObject(graph, object, 1), cudaSuccess);
  EXPECT_TRUE(seen.ran_here());
}

TEST_F(SharedReference, TakenOffAndPutBackWhileAnExecIsInFlightStays) {
  add_kernel(graph, wait_flag_call(flag.get()));
  owned_exec exec = instantiate(graph);
  must(cudaGraphLaunch(exec, stream));
  take_off_and_put_back(graph);
  exec.reset();
  flag.raise();
  must(cudaStreamSynchronize(stream));
  EXPECT_TRUE(stays_false([&] { return seen.ran(); }));
  graph.reset();
  EXPECT_TRUE(seen.wait());
}

TEST_F(SharedReference, OnTwoGraphsGoesWithTheLast) {
  owned_graph other = tiny_graph();
  ASSERT_EQ(cudaUserObjectRetain(object, 1), cudaSuccess);
  ASSERT_EQ(cudaGraphRetainUserObject(other, object, 1, cudaGraphUserObjectMove), cudaSuccess);
  graph.reset();
  EXPECT_FALSE(seen.ran());
  other.reset();
  EXPECT_TRUE(seen.ran_here());
}

TEST_F(SharedReference, IsLetGoByAnUpdateToAGraphWithoutIt) {
  owned_exec const exec = instantiate(graph);
  owned_graph const without = tiny_graph();
  graph.reset();
  EXPECT_FALSE(seen.ran());
  cudaGraphExecUpdateResultInfo result{};
  ASSERT_EQ(cudaGraphExecUpdate(exec, without, &result), cudaSuccess);
  EXPECT_TRUE(seen.wait());
}

TEST_F(SharedReference, StaysWithAnExecWhoseUpdateFailed) {
  owned_exec exec = instantiate(graph);
  owned_graph const longer = chain({tiny_call(), tiny_call()});
  graph.reset();
  cudaGraphExecUpdateResultInfo result{};
  EXPECT_EQ(cudaGraphExecUpdate(exec, longer, &result), cudaErrorGraphExecUpdateFailure);
  static_cast<void>(cudaGetLastError());
  EXPECT_FALSE(seen.ran());
  exec.reset();
  EXPECT_TRUE(seen.ran_here());
}

}  // namespace
}  // namespace escrow::test
