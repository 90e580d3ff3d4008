// Events that graphs record and wait for, and that are destroyed too early.
#include <gtest/gtest.h>

#include "build_graph.hpp"
#include "fresh_runtime.hpp"
#include "handles.hpp"
#include "kernels.hpp"

namespace escrow::test {
namespace {

using GraphEvents = fresh_runtime;

TEST_F(GraphEvents, DestroyedBeforeALaunchThatRecordsThemKeepTheGraphFromRunning) {
  owned_stream const stream = make_stream();
  owned_event event = make_event();
  owned_graph const graph = make_graph();
  cudaGraphNode_t node = nullptr;
  must(cudaGraphAddEventRecordNode(&node, graph, nullptr, 0, event));
  owned_exec const exec = instantiate(graph);
  must(cudaGraphLaunch(exec, stream));
  event.reset();
  EXPECT_EQ(cudaGraphLaunch(exec, stream), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
}

TEST_F(GraphEvents, DestroyedBeforeALaunchThatWaitsForThemInAChildKeepItFromRunning) {
  owned_stream const stream = make_stream();
  owned_event event = make_event();
  owned_graph const child = make_graph();
  owned_graph const graph = make_graph();
  cudaGraphNode_t node = nullptr;
  must(cudaGraphAddEventWaitNode(&node, child, nullptr, 0, event));
  add_child(graph, child);
  owned_exec const exec = instantiate(graph);
  event.reset();
  EXPECT_EQ(cudaGraphLaunch(exec, stream), cudaErrorInvalidResourceHandle);
}

}  // namespace
}  // namespace escrow::test
