// What the simulator counts: objects alive, calls made, captures killed.
#include <gtest/gtest.h>

#include <thread>

#include "build_graph.hpp"
#include "capturing.hpp"
#include "fresh_runtime.hpp"
#include "handles.hpp"
#include "kernels.hpp"
#include "memory.hpp"
#include "witness.hpp"

namespace escrow::test {
namespace {

using Counts = fresh_runtime;

TEST_F(Counts, EachKindOfObjectIsCountedWhileItIsAlive) {
  {
    owned_stream const stream = make_stream();
    owned_event const event = make_event();
    owned_graph const graph = chain({tiny_call()});
    owned_exec const exec = instantiate(graph);
    witness seen;
    seen.move_to(graph);
    void* device = nullptr;
    void* host = nullptr;
    must(cudaMalloc(&device, 48));
    must(cudaMallocHost(&host, 16));
    sim::counts const expected{.streams = 1,
                               .events = 1,
                               .graphs = 1,
                               .execs = 1,
                               .user_objects = 1,
                               .device_allocations = 1,
                               .device_bytes = 48,
                               .host_allocations = 1};
    EXPECT_EQ(sim::alive(), expected);
    must(cudaFree(device));
    must(cudaFreeHost(host));
  }
  EXPECT_EQ(sim::alive(), sim::counts{});
}

TEST_F(Counts, ADestroyedExecIsInFlightUntilItsLaunchEnds) {
  pinned_flag flag;
  owned_stream const stream = make_stream();
  owned_graph const graph = chain({wait_flag_call(flag.get())});
  owned_exec exec = instantiate(graph);
  must(cudaGraphLaunch(exec, stream));
  exec.reset();
  EXPECT_EQ(sim::alive().execs, 0U);
  EXPECT_EQ(sim::alive().execs_in_flight, 1U);
  EXPECT_GT(sim::alive().pending_ops, 0U);
  flag.raise();
  must(cudaStreamSynchronize(stream));
  EXPECT_EQ(sim::alive().execs_in_flight, 0U);
  EXPECT_EQ(sim::alive().pending_ops, 0U);
}

TEST_F(Counts, AnEmbeddedGraphCountsWithItsParent) {
  owned_graph const child = chain({tiny_call()});
  owned_graph const parent = make_graph();
  cudaGraphNode_t node = nullptr;
  must(cudaGraphAddChildGraphNode(&node, parent, nullptr, 0, child));
  EXPECT_EQ(sim::alive().graphs, 2U);
}

TEST_F(Counts, CapturesAreCountedUntilTheyEnd) {
  owned_stream const stream = make_stream();
  capture open{stream, cudaStreamCaptureModeRelaxed};
  EXPECT_EQ(sim::alive().captures, 1U);
  must(open.end());
  EXPECT_EQ(sim::alive().captures, 0U);
}

TEST_F(Counts, CallsAreCountedInAllAndByName) {
  auto const before = sim::calls();
  owned_event const event = make_event();
  static_cast<void>(cudaEventQuery(event));
  static_cast<void>(cudaEventQuery(nullptr));
  EXPECT_EQ(sim::calls() - before, 3U);
  EXPECT_EQ(sim::calls("cudaEventQuery"), 2U);
  EXPECT_EQ(sim::calls("cudaEventRecord"), 0U);
}

TEST_F(Counts, AKilledCaptureNamesTheCallAndTheThread) {
  owned_stream const stream = make_stream();
  capture open{stream, cudaStreamCaptureModeGlobal};
  EXPECT_EQ(sim::captures_invalidated(), 0U);
  EXPECT_EQ(sim::last_invalidation(), "");
  std::thread culprit([] {
    void* memory = nullptr;
    must_be(cudaMalloc(&memory, 16), cudaErrorStreamCaptureUnsupported);
    must_be(cudaMalloc(&memory, 16), cudaErrorStreamCaptureUnsupported);
  });
  culprit.join();
  EXPECT_EQ(sim::captures_invalidated(), 1U);
  EXPECT_EQ(sim::last_invalidation().find("cudaMalloc on thread "), 0U) << sim::last_invalidation();
}

TEST_F(Counts, AThreadMayEndWhileItsStreamIsPartOfACapture) {
  owned_stream const origin = make_stream();
  capture open{origin, cudaStreamCaptureModeRelaxed};
  owned_event const fork = make_event();
  must(cudaEventRecord(fork, origin));
  std::thread([&] {
    must(cudaStreamWaitEvent(cudaStreamPerThread, fork));
    must(launch_tiny(cudaStreamPerThread));
  }).join();
  EXPECT_EQ(open.end(), cudaErrorStreamCaptureUnjoined);
}

TEST_F(Counts, ResetForgetsEverythingAndRunsNoDestructor) {
  bool ran = false;
  cudaUserObject_t object = nullptr;
  must(cudaUserObjectCreate(
      &object, &ran, [](void* it) { *static_cast<bool*>(it) = true; }, 1,
      cudaUserObjectNoDestructorSync));
  pinned_ints flag;
  owned_stream stream = make_stream();
  owned_graph graph = chain({wait_flag_call(flag.data())});
  must(cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove));
  owned_exec exec = instantiate(graph);
  must(cudaGraphLaunch(exec, stream));
  sim::reset();
  EXPECT_EQ(sim::alive(), sim::counts{});
  EXPECT_EQ(sim::calls(), 0U);
  EXPECT_FALSE(ran);
  EXPECT_EQ(cudaStreamDestroy(stream.release()), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaGraphDestroy(graph.release()), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGraphExecDestroy(exec.release()), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace escrow::test
