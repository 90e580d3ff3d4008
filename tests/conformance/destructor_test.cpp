// When and on which thread a user object's destructor runs (cuda-facts.md, section 1).
#include <gtest/gtest.h>
#include <unistd.h>

#include <vector>

#include "build_graph.hpp"
#include "capturing.hpp"
#include "child.hpp"
#include "graph_nodes.hpp"
#include "memory.hpp"
#include "witness.hpp"

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

TEST(UserObjectDestructor, OfTheGraphOfAnUpdateRunsWhenTheExecIsDestroyed) {
  for (bool const is_launched : {false, true}) {
    scene all;
    all.exec = instantiate(all.graph);
    if (is_launched) run(all.exec, all.stream);
    owned_graph source = tiny_graph();
    all.seen.move_to(source);
    ASSERT_EQ(update(all.exec, source), cudaSuccess);
    ASSERT_EQ(cudaGraphDestroy(source.release()), cudaSuccess);
    EXPECT_FALSE(all.seen.ran());
    ASSERT_EQ(destroy_exec(all), cudaSuccess);
    EXPECT_TRUE(all.seen.wait());
  }
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

}  // namespace
}  // namespace escrow::test
