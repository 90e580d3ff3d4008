// The simulator's part in graph memory: it is watched while it is not there, and counted.
#include <gtest/gtest.h>

#include "build_graph.hpp"
#include "fresh_runtime.hpp"
#include "handles.hpp"
#include "kernels.hpp"

namespace escrow::test {
namespace {

// A graph that allocates four integers and fills them, and frees them if asked to.
struct allocating_graph {
  explicit allocating_graph(bool frees) {
    cudaMemAllocNodeParams params{};
    params.poolProps.allocType = cudaMemAllocationTypePinned;
    params.poolProps.location.type = cudaMemLocationTypeDevice;
    params.bytesize = 4 * sizeof(int);
    cudaGraphNode_t node = nullptr;
    must(cudaGraphAddMemAllocNode(&node, graph, nullptr, 0, &params));
    data = static_cast<int*>(params.dptr);
    node = add_kernel(graph, fill_call(data, 4, 1), node);
    if (frees) must(cudaGraphAddMemFreeNode(&node, graph, &node, 1, data));
  }

  owned_graph graph = make_graph();
  int* data = nullptr;
};

using SimGraphMemory = fresh_runtime;

TEST_F(SimGraphMemory, IsCountedAsLongAsItsGraphOrWhatALaunchLeftIsThere) {
  owned_stream const stream = make_stream();
  int* left = nullptr;
  {
    allocating_graph const made{false};
    left = made.data;
    EXPECT_EQ(sim::alive().device_allocations, 1U);
    owned_exec const exec = instantiate(made.graph);
    must(cudaGraphLaunch(exec, stream));
    must(cudaStreamSynchronize(stream));
  }
  sim::run_until_idle();
  EXPECT_EQ(sim::alive().device_allocations, 1U);
  must(cudaFree(left));
  EXPECT_EQ(sim::alive().device_allocations, 0U);
  { allocating_graph const made{true}; }
  EXPECT_EQ(sim::alive().device_allocations, 0U);
}

TEST_F(SimGraphMemory, ThatALaunchLeftIsGoneAfterReset) {
  owned_stream stream = make_stream();
  allocating_graph made{false};
  owned_exec exec = instantiate(made.graph);
  must(cudaGraphLaunch(exec, stream));
  must(cudaStreamSynchronize(stream));
  sim::reset();
  EXPECT_EQ(sim::alive(), sim::counts{});
  static_cast<void>(exec.release());
  static_cast<void>(stream.release());
  static_cast<void>(made.graph.release());
}

#ifdef __SANITIZE_ADDRESS__
TEST_F(SimGraphMemory, IsOutOfBoundsBeforeTheAllocNodeHasRun) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        allocating_graph const made{true};
        owned_stream const stream = make_stream();
        must(launch_fill(stream, made.data, 4, 5));
        must(cudaStreamSynchronize(stream));
      },
      "use-after-poison");
}

TEST_F(SimGraphMemory, IsOutOfBoundsAfterTheFreeNodeHasRun) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        allocating_graph const made{true};
        owned_stream const stream = make_stream();
        owned_exec const exec = instantiate(made.graph);
        must(cudaGraphLaunch(exec, stream));
        must(launch_fill(stream, made.data, 4, 5));
        must(cudaStreamSynchronize(stream));
      },
      "use-after-poison");
}
#endif

}  // namespace
}  // namespace escrow::test
