// What the simulator counts: objects and memory alive, calls made, also from callbacks, captures
// killed; and that reset() forgets all of it.
#include <gtest/gtest.h>

#include <thread>

#include "build_graph.hpp"
#include "capturing.hpp"
#include "fresh_runtime.hpp"
#include "graph_nodes.hpp"
#include "memory.hpp"
#include "witness.hpp"

namespace escrow::test {
namespace {

using Counts = fresh_runtime;

TEST_F(Counts, EachKindOfObjectIsCountedWhileItIsAlive) {
  {
    owned_stream const stream = make_stream();
    owned_event const event = make_event();
    owned_graph const graph = tiny_graph();
    owned_exec const exec = instantiate(graph);
    add_child(graph, tiny_graph());
    witness seen;
    seen.move_to(graph);
    cudaLibrary_t library = nullptr;
    must(cudaLibraryLoadData(&library, library_code(), nullptr, nullptr, 0, nullptr, nullptr, 0));
    void* device = nullptr;
    void* host = nullptr;
    must(cudaMalloc(&device, 48));
    must(cudaMallocHost(&host, 16));
    sim::counts const expected{.streams = 1,
                               .events = 1,
                               .graphs = 1,  // with the embedded one
                               .execs = 1,
                               .user_objects = 1,
                               .device_allocations = 1,
                               .device_bytes = 48,
                               .host_allocations = 1,
                               .libraries = 1};
    EXPECT_EQ(sim::alive(), expected);
    must(cudaFree(device));
    must(cudaFreeHost(host));
    must(cudaLibraryUnload(library));
    EXPECT_EQ(cudaLibraryUnload(library), cudaErrorInvalidValue);
  }
  EXPECT_EQ(sim::alive(), sim::counts{});
}

TEST_F(Counts, ADestroyedExecIsInFlightUntilItsLaunchEnds) {
  pinned_flag flag;
  owned_stream const stream = make_stream();
  owned_exec exec = instantiate(chain({wait_flag_call(flag.get())}));
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

TEST_F(Counts, GraphMemoryIsAliveAsLongAsItsGraphOrWhatALaunchLeft) {
  owned_stream const stream = make_stream();
  owned_graph graph = make_graph();
  int* const left = add_alloc(graph).data;
  EXPECT_EQ(sim::alive().device_allocations, 1U);
  run(graph, stream);
  graph.reset();
  sim::run_until_idle();
  EXPECT_EQ(sim::alive().device_allocations, 1U);
  must(cudaFree(left));
  EXPECT_EQ(sim::alive().device_allocations, 0U);
  graph = make_graph();
  allocation const freed = add_alloc(graph);
  add_free(graph, freed, freed.node);
  graph.reset();
  EXPECT_EQ(sim::alive().device_allocations, 0U);
}

TEST_F(Counts, MemoryIsFreedBehindTheWorkThatUsesItAndOnce) {
  sim::reset({.stepped = true});
  owned_stream const stream = make_stream();
  pinned_ints mismatches;
  void* memory = nullptr;
  must(cudaMallocAsync(&memory, 16, stream));
  int* const data = static_cast<int*>(memory);
  must(launch_fill(stream, data, 4, 5));
  must(cudaFreeAsync(data, stream));
  EXPECT_EQ(cudaFreeAsync(data, stream), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(data), cudaErrorInvalidValue);
  EXPECT_EQ(sim::alive().device_allocations, 1U) << "in the stream's order";
  must(cudaStreamSynchronize(stream));
  EXPECT_EQ(sim::alive().device_allocations, 0U);
  must(cudaMalloc(&memory, 16));
  must(launch_fill(stream, static_cast<int*>(memory), 4, 5));
  must(launch_check(stream, static_cast<int*>(memory), 4, 5, mismatches.data()));
  ASSERT_EQ(cudaFree(memory), cudaSuccess);
  EXPECT_EQ(cudaStreamQuery(stream), cudaSuccess) << "cudaFree waits for the device";
  EXPECT_EQ(mismatches.load(), 0);
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

TEST_F(Counts, CallsInsideCallbacksAreCountedWhetherTheyAreAllowedOrNot) {
  auto const release = [](witness seen) { must(cudaUserObjectRelease(seen.make(), 1)); };
  release(witness{});
  EXPECT_EQ(sim::calls_in_callbacks(), 0U);
  release(witness{[] {
    int device = 0;
    EXPECT_EQ(cudaGetDevice(&device), cudaErrorNotPermitted);
  }});
  EXPECT_EQ(sim::calls_in_callbacks(), 1U);
  owned_stream const stream = make_stream();
  must(cudaLaunchHostFunc(
      stream, [](void*) { static_cast<void>(cudaGetLastError()); }, nullptr));
  must(cudaStreamSynchronize(stream));
  EXPECT_EQ(sim::calls_in_callbacks(), 2U);
}

TEST_F(Counts, ADestructorMayReleaseAnotherObjectAndNoLockIsHeldWhileItRuns) {
  witness inner;
  cudaUserObject_t const held = inner.make();
  sim::counts during;
  witness outer{[&] {
    must(cudaUserObjectRelease(held, 1));
    during = sim::alive();  // takes the simulator's lock: would never return
  }};
  must(cudaUserObjectRelease(outer.make(), 1));
  EXPECT_TRUE(inner.ran_here());
  EXPECT_EQ(during, sim::counts{});
}

TEST_F(Counts, CapturesAreCountedUntilTheyEndAndAKilledOneNamesTheCallAndTheThread) {
  owned_stream const stream = make_stream();
  {
    capture const open{stream, cudaStreamCaptureModeGlobal};
    EXPECT_EQ(sim::alive().captures, 1U);
    EXPECT_EQ(sim::captures_invalidated(), 0U);
    EXPECT_EQ(sim::last_invalidation(), "");
    std::thread([] {
      void* memory = nullptr;
      must_be(cudaMalloc(&memory, 16), cudaErrorStreamCaptureUnsupported);
      must_be(cudaMalloc(&memory, 16), cudaErrorStreamCaptureUnsupported);
    }).join();
    EXPECT_EQ(sim::captures_invalidated(), 1U);
    EXPECT_EQ(sim::last_invalidation().find("cudaMalloc on thread "), 0U)
        << sim::last_invalidation();
  }
  EXPECT_EQ(sim::alive().captures, 0U);
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
  owned_graph graph = make_graph();
  static_cast<void>(add_alloc(graph));
  must(cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove));
  owned_exec exec = instantiate(graph);
  run(exec, stream);
  must(launch_wait_flag(stream, flag.data()));
  sim::reset();
  EXPECT_EQ(sim::alive(), sim::counts{});
  EXPECT_EQ(sim::calls(), 0U);
  EXPECT_FALSE(ran);
  EXPECT_EQ(cudaStreamDestroy(stream.release()), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaGraphDestroy(graph.release()), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGraphExecDestroy(exec.release()), cudaErrorInvalidValue);
}

// A WHILE node that adds 1 to `cell` until it is `limit`.
owned_graph loop(int* cell, int limit) {
  owned_graph graph = make_graph();
  auto const condition = make_condition(graph, 1);
  auto* const body = add_conditional_node(graph, condition, cudaGraphCondTypeWhile).bodies[0];
  add_kernel(body, set_condition_below_call(condition, cell, limit),
             add_kernel(body, add_call(cell, 1)));
  return graph;
}

using ConditionValues = fresh_runtime;

TEST_F(ConditionValues, AreFreedWithTheExecThatHadThem) {
  pinned_ints cells;
  owned_stream const stream = make_stream();
  for (int round = 1; round <= 3; ++round) {
    owned_exec exec = instantiate(loop(cells.data(), 2 * round));
    must(cudaGraphLaunch(exec, stream));
    exec.reset();  // waits for the launch
    EXPECT_EQ(cells.load(), 2 * round);
    EXPECT_EQ(sim::alive().condition_values, 0U);
  }
}

TEST_F(ConditionValues, AreFreedWithTheGraphThatAnUpdateReplaces) {
  for (bool const is_in_flight : {false, true}) {
    sim::reset({.stepped = true});
    pinned_ints cells{2};
    owned_stream const stream = make_stream();
    owned_graph const second = loop(cells.data() + 1, 5);
    owned_exec exec = instantiate(loop(cells.data(), 3));
    must(cudaGraphLaunch(exec, stream));
    if (!is_in_flight) sim::run_until_idle();
    must(update(exec, second));
    must(cudaGraphLaunch(exec, stream));
    exec.reset();  // waits for the launches
    sim::run_until_idle();
    EXPECT_EQ(cells.load(0), 3);
    EXPECT_EQ(cells.load(1), 5);
    EXPECT_EQ(sim::alive().condition_values, 0U) << "in flight: " << is_in_flight;
  }
}

TEST_F(ConditionValues, EndALoopWhenItsDeviceFails) {
  pinned_ints cells;
  owned_stream const stream = make_stream();
  owned_exec const exec = instantiate(loop(cells.data(), 1 << 30));
  must(cudaGraphLaunch(exec, stream));
  ASSERT_TRUE(wait_until([&] { return cells.load() > 10; }));
  sim::fail_device(0, cudaErrorIllegalAddress);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorIllegalAddress);
  sim::run_until_idle();
  EXPECT_EQ(sim::alive().pending_ops, 0U);
}

}  // namespace
}  // namespace escrow::test
