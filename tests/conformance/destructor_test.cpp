// When and on which thread a user object's destructor runs.
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "build_graph.hpp"
#include "capturing.hpp"
#include "child.hpp"
#include "handles.hpp"
#include "memory.hpp"
#include "witness.hpp"

namespace escrow::test {
namespace {

// An exec of one kernel that holds the last reference to what `seen` makes.
owned_exec exec_holding(witness& seen, kernel_call const& call = tiny_call()) {
  owned_graph const graph = chain({call});
  seen.move_to(graph);
  return instantiate(graph);
}

TEST(UserObjectDestructor, RunsOnTheCallerInsideTheReleaseOfTheLastReference) {
  witness seen;
  cudaUserObject_t const object = seen.make(2);
  ASSERT_EQ(cudaUserObjectRelease(object, 1), cudaSuccess);
  EXPECT_FALSE(seen.ran());
  ASSERT_EQ(cudaUserObjectRelease(object, 1), cudaSuccess);
  EXPECT_TRUE(seen.ran_here());
}

TEST(UserObjectDestructor, RunsOnTheCallerInsideGraphDestroyWhereNoExecHoldsTheObject) {
  witness seen;
  owned_graph graph = tiny_graph();
  seen.move_to(graph);
  EXPECT_FALSE(seen.ran());
  ASSERT_EQ(cudaGraphDestroy(graph.release()), cudaSuccess);
  EXPECT_TRUE(seen.ran_here());
}

TEST(UserObjectDestructor, RunsOnTheCallerInsideTheDestroyOfAnExecThatWasNeverLaunched) {
  witness seen;
  owned_exec exec = exec_holding(seen);
  EXPECT_FALSE(seen.ran());
  ASSERT_EQ(cudaGraphExecDestroy(exec.release()), cudaSuccess);
  EXPECT_TRUE(seen.ran_here());
}

TEST(UserObjectDestructor, RunsOnAnInternalThreadForAnExecThatWasLaunchedAndIsDone) {
  witness seen;
  owned_stream const stream = make_stream();
  owned_exec exec = exec_holding(seen);
  must(cudaGraphLaunch(exec, stream));
  must(cudaStreamSynchronize(stream));
  EXPECT_FALSE(seen.ran());
  ASSERT_EQ(cudaGraphExecDestroy(exec.release()), cudaSuccess);
  ASSERT_TRUE(seen.wait());
  EXPECT_TRUE(seen.ran_elsewhere());
}

TEST(UserObjectDestructor, RunsAfterALaunchInFlightWithNoFurtherCallFromAnyone) {
  witness seen;
  pinned_flag flag;
  owned_stream const stream = make_stream();
  owned_exec exec = exec_holding(seen, wait_flag_call(flag.get()));
  must(cudaGraphLaunch(exec, stream));
  ASSERT_EQ(cudaGraphExecDestroy(exec.release()), cudaSuccess);
  EXPECT_TRUE(stays_false([&] { return seen.ran(); }));
  flag.raise();
  ASSERT_TRUE(seen.wait());
  EXPECT_TRUE(seen.ran_elsewhere());
}

void expect_update_lets_the_old_object_go(bool launched) {
  witness old_seen;
  witness new_seen;
  owned_stream const stream = make_stream();
  owned_exec exec = exec_holding(old_seen);
  if (launched) {
    must(cudaGraphLaunch(exec, stream));
    must(cudaStreamSynchronize(stream));
  }
  owned_graph source = tiny_graph();
  new_seen.move_to(source);

  cudaGraphExecUpdateResultInfo info{};
  ASSERT_EQ(cudaGraphExecUpdate(exec, source, &info), cudaSuccess);
  if (launched) {
    ASSERT_TRUE(old_seen.wait());
    EXPECT_TRUE(old_seen.ran_elsewhere());
  } else {
    EXPECT_TRUE(old_seen.ran_here());
  }

  ASSERT_EQ(cudaGraphDestroy(source.release()), cudaSuccess);
  EXPECT_FALSE(new_seen.ran());
  ASSERT_EQ(cudaGraphExecDestroy(exec.release()), cudaSuccess);
  EXPECT_TRUE(new_seen.wait());
}

TEST(UserObjectDestructor, RunsOnTheCallerInsideTheUpdateOfAnExecThatWasNeverLaunched) {
  expect_update_lets_the_old_object_go(false);
}

TEST(UserObjectDestructor, RunsElsewhereAfterTheUpdateOfAnExecWhoseLaunchIsDone) {
  expect_update_lets_the_old_object_go(true);
}

TEST(UserObjectDestructor, RunsOnTheCallerInsideDestroyNodeOfAChildGraphNode) {
  witness seen;
  owned_graph const graph = make_graph();
  cudaGraphNode_t child = nullptr;
  {
    owned_graph const original = tiny_graph();
    seen.move_to(original);
    child = add_child(graph, original);
  }
  EXPECT_FALSE(seen.ran());
  ASSERT_EQ(cudaGraphDestroyNode(child), cudaSuccess);
  EXPECT_TRUE(seen.ran_here());
}

TEST(UserObjectDestructor, RunsOnTheCallerInsideEndCaptureOfAnInvalidatedCapture) {
  witness seen;
  owned_stream const stream = make_stream();
  capture open{stream, cudaStreamCaptureModeGlobal};
  seen.move_to(open.info().graph);
  EXPECT_NE(cudaStreamQuery(stream), cudaSuccess);
  EXPECT_EQ(open.info().graph, nullptr);
  EXPECT_FALSE(seen.ran());
  EXPECT_EQ(open.end(), cudaErrorStreamCaptureInvalidated);
  EXPECT_EQ(open.graph().get(), nullptr);
  EXPECT_TRUE(seen.ran_here());
}

TEST(UserObjectDestructor, RunsOnTheCallerInsideTheDestroyOfACapturingStream) {
  witness seen;
  owned_stream stream = make_stream();
  must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  seen.move_to(info_of(stream).graph);
  EXPECT_FALSE(seen.ran());
  EXPECT_EQ(cudaStreamDestroy(stream.release()), cudaSuccess);
  EXPECT_TRUE(seen.ran_here());
  static_cast<void>(cudaGetLastError());
}

TEST(UserObjectDestructor, WaitsForTheExecWhenTheGraphReleasesItsReference) {
  witness seen;
  owned_graph const graph = tiny_graph();
  cudaUserObject_t const object = seen.make();
  must(cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove));
  owned_exec exec = instantiate(graph);
  ASSERT_EQ(cudaGraphReleaseUserObject(graph, object, 1), cudaSuccess);
  EXPECT_TRUE(stays_false([&] { return seen.ran(); }));
  ASSERT_EQ(cudaGraphExecDestroy(exec.release()), cudaSuccess);
  EXPECT_TRUE(seen.ran_here());
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
  must(cudaGraphLaunch(all.launched, all.stream));
  must(cudaStreamSynchronize(all.stream));
  return all;
}

int end_the_process() {
  leave_objects_alive();
  return 42;
}

int reset_the_device() {
  left_alive const& all = leave_objects_alive();
  must(cudaDeviceReset());
  return stays_false([&] { return all.seen.ran(); }) ? 42 : 1;
}

child_case const end_case{"end_the_process", &end_the_process};
child_case const reset_case{"reset_the_device", &reset_the_device};

TEST(UserObjectDestructor, NeverRunsAtTheEndOfTheProcess) {
  child_result const child = run_child("end_the_process");
  EXPECT_EQ(child.status, 42) << child.output;
  EXPECT_EQ(child.output, "");
}

TEST(UserObjectDestructor, NeverRunsAtOrAfterADeviceReset) {
  child_result const child = run_child("reset_the_device");
  EXPECT_EQ(child.status, 42) << child.output;
  EXPECT_EQ(child.output, "");
}

TEST(UserObjectDestructor, RunsOnceForEachOf4096ObjectsOfOneExec) {
  std::vector<witness> all(4096);
  owned_stream const stream = make_stream();
  owned_graph graph = tiny_graph();
  for (witness& one : all) {
    one.move_to(graph);
  }
  owned_exec exec = instantiate(graph);
  graph.reset();
  must(cudaGraphLaunch(exec, stream));
  must(cudaStreamSynchronize(stream));
  ASSERT_EQ(cudaGraphExecDestroy(exec.release()), cudaSuccess);
  for (witness const& one : all) {
    ASSERT_TRUE(one.wait());
    EXPECT_TRUE(one.ran_elsewhere());
  }
}

}  // namespace
}  // namespace escrow::test
