// Many threads at once and large numbers: for ThreadSanitizer, and to keep the simulator fit for
// the library's tests.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <thread>
#include <vector>

#include "build_graph.hpp"
#include "capturing.hpp"
#include "fresh_runtime.hpp"
#include "handles.hpp"
#include "kernels.hpp"
#include "memory.hpp"
#include "wait_until.hpp"

namespace escrow::test {
namespace {

using RuntimeStress = fresh_runtime;

std::atomic<int> destroyed{0};

void count(void*) {
  // release: pairs with the acquire of whoever waits for the number.
  destroyed.fetch_add(1, std::memory_order_release);
}

void give_object_to(cudaGraph_t graph) {
  cudaUserObject_t object = nullptr;
  must(cudaUserObjectCreate(&object, nullptr, count, 1, cudaUserObjectNoDestructorSync));
  must(cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove));
}

bool wait_for(int expected) {
  return wait_until([=] { return destroyed.load(std::memory_order_acquire) == expected; });
}

// Captures, launches and relaunches on a stream of its own, with work on a second stream joined in.
void one_users_work(int rounds, int* cell) {
  thread_mode_scope const relaxed{cudaStreamCaptureModeRelaxed};
  owned_stream const stream = make_stream();
  owned_stream const side = make_stream(cudaStreamDefault);
  owned_event const forked = make_event();
  owned_event const joined = make_event();
  for (int i = 0; i < rounds; ++i) {
    capture open{stream, cudaStreamCaptureModeThreadLocal};
    must(cudaEventRecord(forked, stream));
    must(cudaStreamWaitEvent(side, forked));
    must(launch_add(side, cell, 1));
    must(cudaEventRecord(joined, side));
    must(launch_add(stream, cell, 1));
    must(cudaStreamWaitEvent(stream, joined));
    give_object_to(open.info().graph);
    must(open.end());
    owned_exec const exec = instantiate(open.graph());
    must(cudaGraphLaunch(exec, stream));
    must(cudaGraphLaunch(exec, side));
    if (i % 3 == 0) must(cudaStreamSynchronize(stream));
  }
  must(cudaStreamSynchronize(stream));
  must(cudaStreamSynchronize(side));
}

TEST_F(RuntimeStress, ManyThreadsCaptureLaunchAndDestroyAtOnce) {
  constexpr int users = 4;
  constexpr int rounds = 100;
  destroyed.store(0, std::memory_order_relaxed);
  pinned_ints cell;
  {
    std::vector<std::thread> threads;
    for (int i = 0; i < users; ++i) threads.emplace_back(one_users_work, rounds, cell.data());
    for (auto& each : threads) each.join();
  }
  EXPECT_EQ(cell.load(), users * rounds * 4);
  EXPECT_TRUE(wait_for(users * rounds));
  sim::run_until_idle();
  sim::counts const expected{.host_allocations = 1};
  EXPECT_EQ(sim::alive(), expected);
  EXPECT_EQ(sim::captures_invalidated(), 0U);
}

TEST_F(RuntimeStress, TenThousandCapturesInEachModeLeaveNothing) {
  owned_stream const stream = make_stream();
  std::array const modes{cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal,
                         cudaStreamCaptureModeRelaxed};
  for (auto const mode : modes) {
    for (int i = 0; i < 10'000; ++i) {
      capture open{stream, mode};
      must(launch_tiny(stream));
      must(open.end());
    }
  }
  EXPECT_EQ(sim::alive().graphs, 0U);
  EXPECT_EQ(sim::alive().captures, 0U);
}

TEST_F(RuntimeStress, AHundredThousandObjectsOfOneExecAreDestroyedOnce) {
  constexpr int objects = 100'000;
  destroyed.store(0, std::memory_order_relaxed);
  owned_stream const stream = make_stream();
  owned_graph graph = chain({tiny_call()});
  for (int i = 0; i < objects; ++i) give_object_to(graph);
  owned_exec exec = instantiate(graph);
  graph.reset();
  must(cudaGraphLaunch(exec, stream));
  exec.reset();
  EXPECT_TRUE(wait_for(objects));
  EXPECT_EQ(sim::alive().user_objects, 0U);
}

TEST_F(RuntimeStress, ThreadsWithDefaultStreamsComeAndGo) {
  pinned_ints cell;
  for (int i = 0; i < 200; ++i) {
    std::thread([&] { must(launch_add(cudaStreamPerThread, cell.data(), 1)); }).join();
  }
  must(cudaDeviceSynchronize());
  EXPECT_EQ(cell.load(), 200);
}

}  // namespace
}  // namespace escrow::test
