// SPDX-License-Identifier: Apache-2.0
// What the simulator counts, which reset() forgets: objects and memory alive, calls, captures
// killed. And calls that it is told to fail, by number or by name, with no effect but the error.
#include "graph_nodes.hpp"

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

TEST_F(Counts, GraphMemoryIsAliveAsLongAsItsGraphOrWhatALaunchLeft) {
  owned_stream const stream = make_stream();
  owned_graph graph = make_graph();
  int* const left = add_alloc(graph).data;
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
  witness seen{[] {
    int device = 0;
    EXPECT_EQ(cudaGetDevice(&device), cudaErrorNotPermitted);
  }};
  must(cudaUserObjectRelease(seen.make(), 1));
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

class Injection : public fresh_runtime {
 protected:
  static cudaError_t get_device() {
    int device = 0;
    return cudaGetDevice(&device);
  }
  // The status of a call on another thread.
  static cudaError_t elsewhere(auto call) {
    cudaError_t result = cudaErrorUnknown;
    std::jthread([&] { result = call(); }).join();
    return result;
  }

  owned_event event = make_event();
};

TEST_F(Injection, TheNthCallFailsOnceAndHasNoEffectButTheLastError) {
  sim::fail_nth(2, cudaErrorUnknown);
  owned_stream const stream = make_stream();
  auto const before = sim::alive();
  cudaEvent_t made = nullptr;
  EXPECT_EQ(cudaEventCreate(&made), cudaErrorUnknown);
  EXPECT_EQ(made, nullptr);
  EXPECT_EQ(sim::alive(), before);
  EXPECT_EQ(cudaPeekAtLastError(), cudaErrorUnknown);
  EXPECT_EQ(cudaGetLastError(), cudaErrorUnknown);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_EQ(cudaEventCreate(&made), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(made), cudaSuccess);
}

TEST_F(Injection, ANamedCallFailsFromItsNthTimeOnAsOftenAsAskedAndOnThisThreadIfAsked) {
  sim::fail_call("cudaEventRecord", cudaErrorLaunchFailure, 2, 2);
  auto const record = [this] { return cudaEventRecord(event, nullptr); };
  EXPECT_EQ(record(), cudaSuccess);
  EXPECT_EQ(get_device(), cudaSuccess);
  EXPECT_EQ(record(), cudaErrorLaunchFailure);
  EXPECT_EQ(record(), cudaErrorLaunchFailure);
  EXPECT_EQ(sim::faults_pending(), 0U);
  EXPECT_EQ(record(), cudaSuccess);
  sim::fail_call_here("cudaEventRecord", cudaErrorUnknown, 2);
  EXPECT_EQ(sim::faults_pending(), 1U);
  EXPECT_EQ(record(), cudaSuccess);
  EXPECT_EQ(elsewhere(record), cudaSuccess);
  EXPECT_EQ(record(), cudaErrorUnknown);
  EXPECT_EQ(record(), cudaSuccess);
}

TEST_F(Injection, OfNothingIsRefused) {
  EXPECT_THROW(sim::fail_nth(0, cudaErrorUnknown), std::invalid_argument);
  EXPECT_THROW(sim::fail_nth_here(1, cudaSuccess), std::invalid_argument);
  EXPECT_THROW(sim::fail_call("cudaMalloc", cudaErrorUnknown, 0), std::invalid_argument);
  EXPECT_THROW(sim::fail_call_here("cudaMalloc", cudaSuccess), std::invalid_argument);
  EXPECT_EQ(sim::faults_pending(), 0U);
}

TEST_F(Injection, ClearedFaultsDoNotHappenAndLastErrorAndNamesNeverFailAndDoNotCount) {
  sim::fail_nth(1, cudaErrorUnknown);
  sim::fail_call("cudaGetDevice", cudaErrorUnknown);
  sim::fail_call("cudaMemset", cudaErrorUnknown, 1, 3);
  sim::fail_nth_here(1, cudaErrorUnknown);
  EXPECT_EQ(sim::faults_pending(), 6U);
  sim::clear_faults();
  EXPECT_EQ(sim::faults_pending(), 0U);
  EXPECT_EQ(get_device(), cudaSuccess);
  sim::fail_nth(1, cudaErrorUnknown);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  EXPECT_STREQ(cudaGetErrorName(cudaErrorUnknown), "cudaErrorUnknown");
  EXPECT_STREQ(cudaGetErrorString(cudaSuccess), "no error");
  EXPECT_EQ(get_device(), cudaErrorUnknown);
}

TEST_F(Injection, AnErrorThatLosesTheDeviceLosesTheCurrentOneAtThatVeryCallWhichMayDoItsWork) {
  must(cudaSetDevice(1));
  owned_stream const stream = make_stream();
  pinned_ints flag;
  must(launch_wait_flag(stream, flag.data()));
  owned_graph graph = make_graph();
  sim::fail_nth(1, cudaErrorIllegalAddress);
  EXPECT_EQ(cudaGraphDestroy(graph.release()), cudaSuccess) << "it outlives a lost device";
  EXPECT_EQ(sim::alive().graphs, 0U);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorIllegalAddress) << "the work goes on";
  sim::run_until_idle();
  EXPECT_TRUE(sim::has_failed(1));
  EXPECT_FALSE(sim::has_failed(0));
  void* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, 16), cudaErrorIllegalAddress);
}

}  // namespace
}  // namespace escrow::test
