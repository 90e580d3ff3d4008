// Which graphs and execs hold references to user objects.
#include <gtest/gtest.h>

#include "build_graph.hpp"
#include "capturing.hpp"
#include "handles.hpp"
#include "witness.hpp"

namespace escrow::test {
namespace {

TEST(UserObjectReferences, ClonesAndExecsEachKeepACopyOfEveryReference) {
  witness seen;
  owned_graph graph = tiny_graph();
  seen.move_to(graph);
  owned_graph copy = clone(graph);
  owned_exec exec = instantiate(graph);
  owned_exec exec_of_copy = instantiate(copy);
  graph.reset();
  EXPECT_FALSE(seen.ran());
  copy.reset();
  EXPECT_FALSE(seen.ran());
  exec.reset();
  EXPECT_FALSE(seen.ran());
  exec_of_copy.reset();
  EXPECT_TRUE(seen.ran_here());
}

TEST(UserObjectReferences, BodyGraphsOfConditionalNodesTakeThem) {
  witness seen;
  owned_graph graph = make_graph();
  seen.move_to(add_conditional(graph));
  EXPECT_FALSE(seen.ran());
  graph.reset();
  EXPECT_TRUE(seen.ran_here());
}

TEST(UserObjectReferences, BodyGraphsTakeThemWhileTheyAreCapturedInto) {
  witness seen;
  owned_stream const stream = make_stream();
  owned_graph graph = make_graph();
  cudaGraph_t const body = add_conditional(graph);
  must(cudaStreamBeginCaptureToGraph(stream, body, nullptr, nullptr, 0,
                                     cudaStreamCaptureModeRelaxed));
  must(launch_tiny(stream));
  EXPECT_EQ(info_of(stream).graph, body);
  seen.move_to(body);
  cudaGraph_t ended = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream, &ended), cudaSuccess);
  EXPECT_EQ(ended, body);
  EXPECT_FALSE(seen.ran());
  graph.reset();
  EXPECT_TRUE(seen.ran_here());
}

TEST(UserObjectReferences, GraphsCapturedIntoTakeThem) {
  witness seen;
  owned_stream const stream = make_stream();
  owned_graph graph = make_graph();
  must(cudaStreamBeginCaptureToGraph(stream, graph, nullptr, nullptr, 0,
                                     cudaStreamCaptureModeRelaxed));
  must(launch_tiny(stream));
  EXPECT_EQ(info_of(stream).graph, graph);
  seen.move_to(graph);
  cudaGraph_t ended = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream, &ended), cudaSuccess);
  EXPECT_EQ(ended, graph.get());
  EXPECT_FALSE(seen.ran());
  graph.reset();
  EXPECT_TRUE(seen.ran_here());
}

TEST(UserObjectReferences, GraphsThatAStreamCapturesTakeThem) {
  witness seen;
  owned_stream const stream = make_stream();
  capture open{stream, cudaStreamCaptureModeGlobal};
  must(launch_tiny(stream));
  seen.move_to(open.info().graph);
  ASSERT_EQ(open.end(), cudaSuccess);
  EXPECT_FALSE(seen.ran());
  open.graph().reset();
  EXPECT_TRUE(seen.ran_here());
}

// The next two leave their object's count undefined, so it lives on in a static and is never asked
// about.
TEST(UserObjectReferences, ReleasingAnObjectThatTheGraphDoesNotHoldReturnsSuccess) {
  static witness seen;
  static cudaUserObject_t const object = seen.make(2);
  owned_graph const graph = tiny_graph();
  EXPECT_EQ(cudaGraphReleaseUserObject(graph, object, 1), cudaSuccess);
}

TEST(UserObjectReferences, MovingMoreThanOneOwnsReturnsSuccess) {
  static witness seen;
  static cudaUserObject_t const object = seen.make(1);
  static owned_graph const& graph = *new owned_graph{tiny_graph()};
  EXPECT_EQ(cudaGraphRetainUserObject(graph, object, 2, cudaGraphUserObjectMove), cudaSuccess);
}

// An object that the test shares with `graph`: one reference each.
cudaUserObject_t share(witness& seen, cudaGraph_t graph) {
  cudaUserObject_t const object = seen.make();
  must(cudaGraphRetainUserObject(graph, object, 1, 0));
  return object;
}

TEST(UserObjectReferences, AnExecCarriesNoneThatTheGraphReleasedBeforeInstantiation) {
  witness seen;
  owned_stream const stream = make_stream();
  owned_graph const graph = tiny_graph();
  cudaUserObject_t const object = share(seen, graph);
  ASSERT_EQ(cudaGraphReleaseUserObject(graph, object, 1), cudaSuccess);
  owned_exec const exec = instantiate(graph);
  must(cudaGraphLaunch(exec, stream));
  must(cudaStreamSynchronize(stream));
  EXPECT_FALSE(seen.ran());
  ASSERT_EQ(cudaUserObjectRelease(object, 1), cudaSuccess);
  EXPECT_TRUE(seen.ran_here());
}

TEST(UserObjectReferences, CanBeTakenOffAGraphForAnInstantiationAndPutBack) {
  witness seen;
  owned_graph graph = tiny_graph();
  cudaUserObject_t const object = share(seen, graph);
  must(cudaGraphReleaseUserObject(graph, object, 1));
  owned_exec const exec = instantiate(graph);
  ASSERT_EQ(cudaGraphRetainUserObject(graph, object, 1, 0), cudaSuccess);
  must(cudaUserObjectRelease(object, 1));
  EXPECT_FALSE(seen.ran());
  graph.reset();
  EXPECT_TRUE(seen.ran_here());
}

TEST(UserObjectReferences, AnExecCarriesNoneThatAnEmbeddedChildGraphReleased) {
  witness seen;
  owned_graph const graph = make_graph();
  cudaUserObject_t object = nullptr;
  cudaGraphNode_t node = nullptr;
  {
    owned_graph const child = tiny_graph();
    object = share(seen, child);
    node = add_child(graph, child);
  }
  ASSERT_EQ(cudaGraphReleaseUserObject(embedded_graph(node), object, 1), cudaSuccess);
  owned_exec const exec = instantiate(graph);
  EXPECT_FALSE(seen.ran());
  ASSERT_EQ(cudaUserObjectRelease(object, 1), cudaSuccess);
  EXPECT_TRUE(seen.ran_here());
}

TEST(UserObjectReferences, AnExecCarriesNoneThatABodyGraphReleased) {
  witness seen;
  owned_graph const graph = make_graph();
  cudaGraph_t const body = add_conditional(graph);
  add_kernel(body, tiny_call());
  cudaUserObject_t const object = share(seen, body);
  ASSERT_EQ(cudaGraphReleaseUserObject(body, object, 1), cudaSuccess);
  owned_exec const exec = instantiate(graph);
  EXPECT_FALSE(seen.ran());
  ASSERT_EQ(cudaUserObjectRelease(object, 1), cudaSuccess);
  EXPECT_TRUE(seen.ran_here());
}

TEST(UserObjectReferences, AnExecCarriesThoseOfEmbeddedChildGraphs) {
  witness seen;
  owned_graph graph = make_graph();
  {
    owned_graph const child = tiny_graph();
    seen.move_to(child);
    add_child(graph, child);
  }
  owned_exec exec = instantiate(graph);
  graph.reset();
  EXPECT_FALSE(seen.ran());
  exec.reset();
  EXPECT_TRUE(seen.ran_here());
}

TEST(UserObjectReferences, AnExecCarriesThoseOfBodyGraphs) {
  witness seen;
  owned_graph graph = make_graph();
  cudaGraph_t const body = add_conditional(graph);
  add_kernel(body, tiny_call());
  seen.move_to(body);
  owned_exec exec = instantiate(graph);
  graph.reset();
  EXPECT_FALSE(seen.ran());
  exec.reset();
  EXPECT_TRUE(seen.ran());
}

TEST(ConditionalGraph, CanHaveOneExecAtATime) {
  owned_graph const graph = make_graph();
  add_kernel(add_conditional(graph), tiny_call());
  owned_exec first = instantiate(graph);
  owned_exec second;
  EXPECT_EQ(cudaGraphInstantiate(second.out(), graph, 0), cudaErrorNotSupported);
  static_cast<void>(cudaGetLastError());
  first.reset();
  EXPECT_EQ(cudaGraphInstantiate(second.out(), graph, 0), cudaSuccess);
}

}  // namespace
}  // namespace escrow::test
