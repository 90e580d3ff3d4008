// A device that fails for good: what every call says, what is dropped, what is still freed, and
// that the other device goes on.
#include <gtest/gtest.h>

#include <atomic>

#include "build_graph.hpp"
#include "fresh_runtime.hpp"
#include "handles.hpp"
#include "kernels.hpp"
#include "memory.hpp"
#include "witness.hpp"

namespace escrow::test {
namespace {

using DeviceFault = fresh_runtime;

TEST_F(DeviceFault, DropsPendingWorkWithoutRunningIt) {
  pinned_ints flag;
  pinned_ints cell;
  owned_stream const stream = make_stream();
  must(launch_wait_flag(stream, flag.data()));
  must(launch_add(stream, cell.data(), 1));
  sim::fail_device(0, cudaErrorIllegalAddress);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorIllegalAddress);
  sim::run_until_idle();
  EXPECT_EQ(cell.load(), 0);
}

TEST_F(DeviceFault, DropsPendingHostFunctions) {
  pinned_ints flag;
  std::atomic<bool> ran{false};
  owned_stream const stream = make_stream();
  must(launch_wait_flag(stream, flag.data()));
  // relaxed: run_until_idle() below orders the function before the look at the flag.
  must(cudaLaunchHostFunc(
      stream,
      [](void* it) { static_cast<std::atomic<bool>*>(it)->store(true, std::memory_order_relaxed); },
      &ran));
  sim::fail_device(0, cudaErrorIllegalAddress);
  sim::run_until_idle();
  EXPECT_FALSE(ran.load(std::memory_order_relaxed));
}

TEST_F(DeviceFault, IsReportedByEveryCallThatNeedsADeviceUntilCleared) {
  owned_event const event = make_event();
  sim::fail_device(0, cudaErrorIllegalAddress);
  void* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, 16), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaEventQuery(event), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
  sim::clear_faults();
  EXPECT_EQ(cudaMalloc(&memory, 16), cudaSuccess);
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
}

TEST_F(DeviceFault, IsReportedOfEveryDeviceAndEndsTheWorkOfItsOwnAlone) {
  owned_stream const stream = make_stream();
  pinned_ints flag;
  pinned_ints cell;
  must(launch_wait_flag(stream, flag.data()));
  must(launch_add(stream, cell.data(), 1));
  sim::fail_device(1, cudaErrorIllegalAddress);
  EXPECT_EQ(cudaStreamQuery(stream), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaSetDevice(1), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaSetDevice(0), cudaErrorIllegalAddress);
  flag.store(0, 1);
  sim::run_until_idle();
  EXPECT_EQ(cell.load(), 1);
}

TEST_F(DeviceFault, StaysWithTheProcessWhenItsDeviceIsReset) {
  sim::fail_device(0, cudaErrorIllegalAddress);
  EXPECT_EQ(cudaDeviceReset(), cudaSuccess);
  void* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, 16), cudaErrorIllegalAddress);
}

TEST_F(DeviceFault, LetsGoOfWhatIsDestroyedAndReportsTheFaultAllTheSame) {
  cudaEvent_t const event = make_event().release();
  cudaStream_t const stream = make_stream().release();
  void* memory = nullptr;
  must(cudaMalloc(&memory, 16));
  sim::fail_device(0, cudaErrorIllegalAddress);
  EXPECT_EQ(cudaEventDestroy(event), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaFree(memory), cudaErrorIllegalAddress);
  EXPECT_EQ(sim::alive(), sim::counts{});
}

TEST_F(DeviceFault, DoesNotKeepDestructorsFromRunning) {
  witness seen;
  owned_stream const stream = make_stream();
  owned_graph graph = chain({tiny_call()});
  seen.move_to(graph);
  owned_exec exec = instantiate(graph);
  must(cudaGraphLaunch(exec, stream));
  sim::fail_device(0, cudaErrorIllegalAddress);
  EXPECT_EQ(cudaGraphDestroy(graph.release()), cudaSuccess);
  EXPECT_EQ(cudaGraphExecDestroy(exec.release()), cudaSuccess);
  EXPECT_TRUE(seen.wait());
}

}  // namespace
}  // namespace escrow::test
