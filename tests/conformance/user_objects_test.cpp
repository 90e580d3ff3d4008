// SPDX-License-Identifier: Apache-2.0
// User objects: when and on which thread a destructor runs, and which graphs and execs hold
// references; each has a count of its own, under the object's one handle.
#include <unistd.h>

#include "child.hpp"
#include "graph_nodes.hpp"

namespace escrow::test {
namespace {

// What holds the user object that `seen` makes, and what is needed to destroy that.
struct scene {
  witness seen;
  owned_stream stream = make_stream();
  owned_graph graph = tiny_graph();
  owned_exec exec;
  cudaUserObject_t object = nullptr;
  cudaGraphNode_t child = nullptr;

  void hold_in_graph() { seen.move_to(graph); }
  void hold_in_exec() {
    hold_in_graph();
    exec = instantiate(graph);
    graph.reset();
  }
  void hold_in_launched_exec() {
    hold_in_exec();
    run(exec, stream);
  }
  void hold_in_capture(cudaStreamCaptureMode mode) {
    must(cudaStreamBeginCapture(stream, mode));
    seen.move_to(info_of(stream).graph);
  }
};

enum class runs_on { the_caller, a_thread_of_cuda };

// One way to drop the last reference.
struct last_reference {
  char const* name;
  runs_on thread;
  cudaError_t status;
  void (*prepare)(scene&);
  cudaError_t (*drop)(scene&);
};

cudaError_t update_to_another(scene& all) {
  return update(all.exec, tiny_graph());
}

cudaError_t destroy_exec(scene& all) {
  return cudaGraphExecDestroy(all.exec.release());
}

constexpr last_reference last_references[] = {
    {"its owner's", runs_on::the_caller, cudaSuccess,
     [](scene& all) {
       all.object = all.seen.make(2);
       must(cudaUserObjectRelease(all.object, 1));
     },
     [](scene& all) { return cudaUserObjectRelease(all.object, 1); }},
    {"a graph's", runs_on::the_caller, cudaSuccess, [](scene& all) { all.hold_in_graph(); },
     [](scene& all) { return cudaGraphDestroy(all.graph.release()); }},
    {"that of an exec that was never launched", runs_on::the_caller, cudaSuccess,
     [](scene& all) { all.hold_in_exec(); }, &destroy_exec},
    {"that of an exec whose launch is done", runs_on::a_thread_of_cuda, cudaSuccess,
     [](scene& all) { all.hold_in_launched_exec(); }, &destroy_exec},
    {"replaced in an exec that was never launched", runs_on::the_caller, cudaSuccess,
     [](scene& all) { all.hold_in_exec(); }, &update_to_another},
    {"replaced in an exec whose launch is done", runs_on::a_thread_of_cuda, cudaSuccess,
     [](scene& all) { all.hold_in_launched_exec(); }, &update_to_another},
    {"a child node's", runs_on::the_caller, cudaSuccess,
     [](scene& all) {
       owned_graph const original = tiny_graph();
       all.seen.move_to(original);
       all.child = add_child(all.graph, original);
     },
     [](scene& all) { return cudaGraphDestroyNode(all.child); }},
    {"an invalidated capture's, at its end", runs_on::the_caller, cudaErrorStreamCaptureInvalidated,
     [](scene& all) {
       all.hold_in_capture(cudaStreamCaptureModeGlobal);
       EXPECT_NE(cudaStreamQuery(all.stream), cudaSuccess);
       EXPECT_EQ(info_of(all.stream).graph, nullptr);
     },
     [](scene& all) {
       cudaError_t const status = cudaStreamEndCapture(all.stream, all.graph.out());
       EXPECT_EQ(all.graph.get(), nullptr);
       return status;
     }},
    {"a capture's whose stream is destroyed", runs_on::the_caller, cudaSuccess,
     [](scene& all) { all.hold_in_capture(cudaStreamCaptureModeRelaxed); },
     [](scene& all) { return cudaStreamDestroy(all.stream.release()); }},
};

TEST(UserObjectDestructor, RunsInsideTheCallThatDropsTheLastReferenceUnlessALaunchedExecHadIt) {
  for (last_reference const& one : last_references) {
    SCOPED_TRACE(one.name);
    scene all;
    one.prepare(all);
    EXPECT_FALSE(all.seen.ran());
    EXPECT_EQ(one.drop(all), one.status);
    if (one.thread == runs_on::the_caller) {
      EXPECT_TRUE(all.seen.ran_here());
    } else {
      ASSERT_TRUE(all.seen.wait());
      EXPECT_TRUE(all.seen.ran_elsewhere());
    }
    static_cast<void>(cudaGetLastError());
  }
}

TEST(UserObjectDestructor, RunsAfterALaunchInFlightWithNoFurtherCallFromAnyone) {
  pinned_flag flag;
  scene all;
  all.graph = chain({wait_flag_call(flag.get())});
  all.hold_in_exec();
  must(cudaGraphLaunch(all.exec, all.stream));
  ASSERT_EQ(destroy_exec(all), cudaSuccess);
  EXPECT_TRUE(stays_false([&] { return all.seen.ran(); }));
  flag.raise();
  ASSERT_TRUE(all.seen.wait());
  EXPECT_TRUE(all.seen.ran_elsewhere());
}

TEST(UserObjectDestructor, RunsOnceForEachOf4096ObjectsOfOneExec) {
  scene of;
  std::vector<witness> all(4096);
  for (witness& one : all) one.move_to(of.graph);
  of.hold_in_launched_exec();
  ASSERT_EQ(destroy_exec(of), cudaSuccess);
  for (witness const& one : all) {
    ASSERT_TRUE(one.wait());
    EXPECT_TRUE(one.ran_elsewhere());
  }
}

// What a child process leaves alive on purpose: static, so that nothing destroys it.
struct left_alive {
  witness seen{[] { static_cast<void>(!write(STDOUT_FILENO, "destructor ran\n", 15)); }};
  owned_stream stream = make_stream();
  owned_graph graph = tiny_graph();
  owned_exec idle;
  owned_exec launched;
};

left_alive& leave_objects_alive() {
  static left_alive& all = *new left_alive;
  all.seen.move_to(all.graph);
  all.idle = instantiate(all.graph);
  all.launched = instantiate(all.graph);
  run(all.launched, all.stream);
  return all;
}

void reset_the_device() {
  left_alive const& all = leave_objects_alive();
  must(cudaDeviceReset());
  must(stays_false([&] { return all.seen.ran(); }), "the destructor did not run");
}

auto const cases = register_cases(
    {{"end_the_process", [] { leave_objects_alive(); }}, {"reset_the_device", &reset_the_device}});

TEST(UserObjectDestructor, NeverRunsAtTheEndOfTheProcessNorAtADeviceReset) {
  for (named_case const& each : cases) {
    child_result const child = run_child(each.name);
    EXPECT_EQ(child.status, as_expected) << each.name << ": " << child.output;
    EXPECT_EQ(child.output, "") << each.name;
  }
}

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

  // Takes the object off the graph and puts it back, as one does around an instantiation.
  void take_off_and_put_back() {
    ASSERT_EQ(cudaUserObjectRetain(object, 1), cudaSuccess);
    ASSERT_EQ(cudaGraphReleaseUserObject(graph, object, 1), cudaSuccess);
    EXPECT_FALSE(seen.ran());
    ASSERT_EQ(cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove), cudaSuccess);
  }
  void expect_last_of(cudaGraph_t holding) {
    EXPECT_FALSE(seen.ran());
    ASSERT_EQ(cudaGraphReleaseUserObject(holding, object, 1), cudaSuccess);
    EXPECT_TRUE(seen.ran_here());
  }
  void expect_ends_with(auto& last) {
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

TEST_F(SharedReference, TakenOffAndPutBackAnyNumberOfTimesAlsoWhileAnExecIsInFlightIsStillOne) {
  add_kernel(graph, wait_flag_call(flag.get()));
  owned_exec exec = instantiate(graph);
  must(cudaGraphLaunch(exec, stream));
  for (int i = 0; i < 100; ++i) take_off_and_put_back();
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
