// Loops whose conditions kernels set, under every order that a seed can choose.
#include <gtest/gtest.h>

#include "build_graph.hpp"
#include "fresh_runtime.hpp"
#include "handles.hpp"
#include "kernels.hpp"
#include "memory.hpp"
#include "wait_until.hpp"

namespace escrow::test {
namespace {

using Conditions = fresh_runtime;

// A WHILE node that adds 1 to `cell` until it is `limit`.
owned_graph loop(int* cell, int limit) {
  owned_graph graph = make_graph();
  cudaGraphConditionalHandle condition{};
  must(cudaGraphConditionalHandleCreate(&condition, graph, 1, cudaGraphCondAssignDefault));
  cudaGraphNodeParams params{};
  params.type = cudaGraphNodeTypeConditional;
  params.conditional.handle = condition;
  params.conditional.type = cudaGraphCondTypeWhile;
  params.conditional.size = 1;
  cudaGraphNode_t node = nullptr;
  must(cudaGraphAddNode(&node, graph, nullptr, nullptr, 0, &params));
  auto* const body = params.conditional.phGraph_out[0];
  auto* const step = add_kernel(body, add_call(cell, 1));
  add_kernel(body, set_condition_below_call(condition, cell, limit), step);
  return graph;
}

TEST_F(Conditions, TwoLoopsAtOnceEachEndAtTheirOwnLimitWhateverTheOrder) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    sim::reset({.stepped = true, .seed = seed});
    pinned_ints cells{2};
    owned_stream const first = make_stream();
    owned_stream const second = make_stream();
    owned_graph const short_loop = loop(cells.data(), 3);
    owned_graph const long_loop = loop(cells.data() + 1, 9);
    owned_exec const short_exec = instantiate(short_loop);
    owned_exec const long_exec = instantiate(long_loop);
    must(cudaGraphLaunch(short_exec, first));
    must(cudaGraphLaunch(long_exec, second));
    sim::run_until_idle();
    EXPECT_EQ(cells.load(0), 3) << "seed " << seed;
    EXPECT_EQ(cells.load(1), 9) << "seed " << seed;
  }
}

TEST_F(Conditions, AValueGoesWithTheExecThatHadItSoThatALongRunKeepsNone) {
  pinned_ints cells;
  owned_stream const stream = make_stream();
  for (int round = 1; round <= 3; ++round) {
    owned_graph graph = loop(cells.data(), 2 * round);
    owned_exec exec = instantiate(graph);
    graph.reset();
    must(cudaGraphLaunch(exec, stream));
    exec.reset();  // waits for the launch
    EXPECT_EQ(cells.load(), 2 * round);
    EXPECT_EQ(sim::alive().condition_values, 0U);
  }
}

TEST_F(Conditions, ValuesGoWithTheGraphThatAnUpdateReplaces) {
  for (bool const is_in_flight : {false, true}) {
    sim::reset({.stepped = true});
    pinned_ints cells{2};
    owned_stream const stream = make_stream();
    owned_graph const first = loop(cells.data(), 3);
    owned_graph const second = loop(cells.data() + 1, 5);
    owned_exec exec = instantiate(first);
    must(cudaGraphLaunch(exec, stream));
    if (!is_in_flight) sim::run_until_idle();
    cudaGraphExecUpdateResultInfo result{};
    must(cudaGraphExecUpdate(exec, second, &result));
    must(cudaGraphLaunch(exec, stream));
    exec.reset();  // waits for the launches
    sim::run_until_idle();
    EXPECT_EQ(cells.load(0), 3);
    EXPECT_EQ(cells.load(1), 5);
    EXPECT_EQ(sim::alive().condition_values, 0U) << "in flight: " << is_in_flight;
  }
}

TEST_F(Conditions, ALoopEndsWhenItsDeviceFails) {
  pinned_ints cells;
  owned_stream const stream = make_stream();
  owned_graph const endless = loop(cells.data(), 1 << 30);
  owned_exec const exec = instantiate(endless);
  must(cudaGraphLaunch(exec, stream));
  ASSERT_TRUE(wait_until([&] { return cells.load() > 10; }));
  sim::fail_device(0, cudaErrorIllegalAddress);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorIllegalAddress);
  sim::run_until_idle();
  EXPECT_EQ(sim::alive().pending_ops, 0U);
}

}  // namespace
}  // namespace escrow::test
