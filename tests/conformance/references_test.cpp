// Which graphs and execs hold references to user objects: each has a count of its own, under the
// object's one handle (cuda-facts.md, sections 1 and 3).
#include <gtest/gtest.h>

#include <utility>

#include "build_graph.hpp"
#include "capturing.hpp"
#include "graph_nodes.hpp"
#include "memory.hpp"
#include "witness.hpp"

namespace escrow::test {
namespace {

TEST(UserObjectReferences, GraphsTakeThemAlsoBodiesAndWhileTheyAreCapturedInto) {
  for (bool const is_body : {false, true}) {
    for (bool const is_captured_into : {false, true}) {
      witness seen;
      owned_stream const stream = make_stream();
      owned_graph graph = make_graph();
      cudaGraph_t const holder = is_body ? add_conditional(graph) : graph.get();
      if (is_captured_into) {
        capture_to_graph(stream, holder, [&] {
          must(launch_tiny(stream));
          seen.move_to(holder);
        });
      } else {
        seen.move_to(holder);
      }
      EXPECT_FALSE(seen.ran());
      graph.reset();
      EXPECT_TRUE(seen.ran_here());
    }
  }
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

TEST(UserObjectReferences, ReleasedBeforeInstantiationAreNotCarriedByTheExec) {
  enum class place { the_graph, a_child, a_body };
  for (place const where : {place::the_graph, place::a_child, place::a_body}) {
    witness seen;
    owned_stream const stream = make_stream();
    owned_graph const graph = make_graph();
    owned_graph child = make_graph();
    cudaUserObject_t const object = seen.make();
    cudaGraph_t holder = where == place::the_graph ? graph.get()
                         : where == place::a_child ? child.get()
                                                   : add_conditional(graph);
    add_kernel(holder, tiny_call());
    must(cudaGraphRetainUserObject(holder, object, 1, 0));
    if (where == place::a_child) holder = embedded_graph(add_child(graph, child));
    child.reset();
    ASSERT_EQ(cudaGraphReleaseUserObject(holder, object, 1), cudaSuccess);
    owned_exec const exec = instantiate(graph);
    run(exec, stream);
    EXPECT_FALSE(seen.ran());
    ASSERT_EQ(cudaUserObjectRelease(object, 1), cudaSuccess);
    EXPECT_TRUE(seen.ran_here());
  }
}

// The counts are undefined then, so all of it lives on in statics and is never asked about.
TEST(UserObjectReferences, ReleasingWhatTheGraphDoesNotHoldAndMovingMoreThanOneOwnsReturnsSuccess) {
  static witness seen[2];
  static cudaUserObject_t const not_held = seen[0].make(2);
  static cudaUserObject_t const owned_once = seen[1].make(1);
  owned_graph const graph = tiny_graph();
  static owned_graph const& kept = *new owned_graph{tiny_graph()};
  EXPECT_EQ(cudaGraphReleaseUserObject(graph, not_held, 1), cudaSuccess);
  EXPECT_EQ(cudaGraphRetainUserObject(kept, owned_once, 2, cudaGraphUserObjectMove), cudaSuccess);
}

// A graph that holds the one reference to a user object whose handle the test keeps.
class SharedReference : public testing::Test {
 protected:
  SharedReference() { must(cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove)); }

  // Takes the object off `from` and puts it back, as one does around an instantiation.
  template <class Meanwhile>
  void take_off_and_put_back(Meanwhile meanwhile) {
    ASSERT_EQ(cudaUserObjectRetain(object, 1), cudaSuccess);
    ASSERT_EQ(cudaGraphReleaseUserObject(graph, object, 1), cudaSuccess);
    meanwhile();
    EXPECT_FALSE(seen.ran());
    ASSERT_EQ(cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove), cudaSuccess);
  }
  void expect_last_of(cudaGraph_t holding) {
    EXPECT_FALSE(seen.ran());
    ASSERT_EQ(cudaGraphReleaseUserObject(holding, object, 1), cudaSuccess);
    EXPECT_TRUE(seen.ran_here());
  }
  template <class Owner>
  void expect_ends_with(Owner& last) {
    EXPECT_FALSE(seen.ran());
    last.reset();
    EXPECT_TRUE(seen.ran_here());
  }

  witness seen;
  pinned_flag flag;
  owned_stream stream = make_stream();
  owned_graph graph = tiny_graph();
  cudaUserObject_t object = seen.make();
};

TEST_F(SharedReference, IsCopiedToClonesAndExecs) {
  owned_graph copy = clone(graph);
  owned_exec exec = instantiate(graph);
  owned_exec exec_of_copy = instantiate(copy);
  graph.reset();
  EXPECT_FALSE(seen.ran());
  copy.reset();
  EXPECT_FALSE(seen.ran());
  exec.reset();
  expect_ends_with(exec_of_copy);
}

TEST_F(SharedReference, OfAnEmbeddedGraphIsCopiedToTheExec) {
  owned_graph parent = make_graph();
  add_child(parent, graph);
  graph.reset();
  owned_exec exec = instantiate(parent);
  parent.reset();
  expect_ends_with(exec);
}

TEST_F(SharedReference, IsReleasedFromEachCloneAndEmbeddedCopyUnderTheSameHandle) {
  owned_graph const copy = clone(graph);
  owned_graph const parent = make_graph();
  cudaGraph_t const first = embedded_graph(add_child(parent, graph));
  cudaGraph_t const second = embedded_graph(add_child(parent, graph));
  owned_graph const copied_parent = clone(parent);
  std::size_t count = 2;
  cudaGraphNode_t nodes[2]{};
  must(cudaGraphGetNodes(copied_parent, nodes, &count));
  for (cudaGraph_t const each :
       {graph.get(), copy.get(), first, second, embedded_graph(nodes[0])}) {
    ASSERT_EQ(cudaGraphReleaseUserObject(each, object, 1), cudaSuccess);
    EXPECT_FALSE(seen.ran());
  }
  expect_last_of(embedded_graph(nodes[1]));
}

TEST_F(SharedReference, ReleasedFromTheGraphStaysWithTheExec) {
  owned_exec exec = instantiate(graph);
  ASSERT_EQ(cudaGraphReleaseUserObject(graph, object, 1), cudaSuccess);
  EXPECT_TRUE(stays_false([&] { return seen.ran(); }));
  expect_ends_with(exec);
}

TEST_F(SharedReference, TakenOffAndPutBackAnyNumberOfTimesIsStillOne) {
  for (int i = 0; i < 100; ++i) take_off_and_put_back([] {});
  expect_last_of(graph);
}

TEST_F(SharedReference, TakenOffForAnInstantiationIsNotTheExecs) {
  owned_exec exec;
  take_off_and_put_back([&] { exec = instantiate(graph); });
  expect_ends_with(graph);
}

TEST_F(SharedReference, TakenOffAndPutBackWhileAnExecIsInFlightStays) {
  add_kernel(graph, wait_flag_call(flag.get()));
  owned_exec exec = instantiate(graph);
  must(cudaGraphLaunch(exec, stream));
  take_off_and_put_back([] {});
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
  expect_ends_with(other);
}

TEST_F(SharedReference, StaysWithAnExecWhoseUpdateFailed) {
  owned_exec exec = instantiate(graph);
  graph.reset();
  EXPECT_EQ(tried(update(exec, chain({tiny_call(), tiny_call()}))),
            cudaErrorGraphExecUpdateFailure);
  expect_ends_with(exec);
}

}  // namespace
}  // namespace escrow::test
