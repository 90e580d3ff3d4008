// The end of a process with work pending: it ends, runs no destructor afterwards, and leaves
// nothing that can crash.
#include <gtest/gtest.h>

#include <cstdio>

#include "build_graph.hpp"
#include "child.hpp"
#include "handles.hpp"
#include "kernels.hpp"
#include "memory.hpp"

namespace escrow::test {
namespace {

// Destroyed after the runtime has shut down, if the runtime was used first.
struct late_caller {
  ~late_caller() {
    int device = 0;
    std::printf("late call: %s\n", cudaGetErrorName(cudaGetDevice(&device)));
    std::fflush(stdout);
  }
};

void print_and_flush(void*) {
  std::puts("destructor ran");
  std::fflush(stdout);
}

int leave_with_work_pending() {
  [[maybe_unused]] static late_caller const late;
  // Static, so that it is still there, and reachable, when the process ends.
  static pinned_ints* const flag = new pinned_ints;
  cudaStream_t const stream = make_stream().release();
  must(launch_wait_flag(stream, flag->data()));
  cudaGraph_t const graph = chain({tiny_call()}).release();
  cudaUserObject_t object = nullptr;
  must(cudaUserObjectCreate(&object, nullptr, print_and_flush, 1, cudaUserObjectNoDestructorSync));
  must(cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove));
  cudaGraphExec_t exec = nullptr;
  must(cudaGraphInstantiate(&exec, graph, 0));
  must(cudaGraphDestroy(graph));
  must(cudaGraphLaunch(exec, stream));
  must(cudaGraphExecDestroy(exec));
  return 3;
}

child_case const pending{"leave_with_work_pending", leave_with_work_pending};

TEST(ProcessExit, WithWorkPendingEndsAndRunsNoDestructor) {
  auto const result = run_child("leave_with_work_pending");
  EXPECT_TRUE(result.exited);
  EXPECT_EQ(result.status, 3) << result.output;
  EXPECT_EQ(result.output.find("destructor ran"), std::string::npos) << result.output;
}

TEST(ProcessExit, ALateCallIsToldThatTheRuntimeIsGone) {
  auto const result = run_child("leave_with_work_pending");
  EXPECT_NE(result.output.find("late call: cudaErrorCudartUnloading"), std::string::npos)
      << result.output;
}

}  // namespace
}  // namespace escrow::test
