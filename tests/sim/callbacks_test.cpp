// Calls from destructors and host functions: counted wherever they come from, and mostly refused.
#include <gtest/gtest.h>

#include "build_graph.hpp"
#include "fresh_runtime.hpp"
#include "handles.hpp"
#include "kernels.hpp"
#include "witness.hpp"

namespace escrow::test {
namespace {

using Callbacks = fresh_runtime;

TEST_F(Callbacks, ACallInsideADestructorOnTheCallersThreadIsRefusedAndCounted) {
  cudaError_t inside = cudaSuccess;
  witness seen{[&] {
    int device = 0;
    inside = cudaGetDevice(&device);
  }};
  must(cudaUserObjectRelease(seen.make(), 1));
  EXPECT_EQ(inside, cudaErrorNotPermitted);
  EXPECT_EQ(sim::calls_in_callbacks(), 1U);
}

TEST_F(Callbacks, ACallInsideAHostFunctionIsCountedEvenIfItIsAllowed) {
  owned_stream const stream = make_stream();
  must(cudaLaunchHostFunc(
      stream, [](void*) { static_cast<void>(cudaGetLastError()); }, nullptr));
  must(cudaStreamSynchronize(stream));
  EXPECT_EQ(sim::calls_in_callbacks(), 1U);
}

TEST_F(Callbacks, CallsOutsideAreNotCountedAndWorkAgainAfterwards) {
  witness seen;
  must(cudaUserObjectRelease(seen.make(), 1));
  owned_stream const stream = make_stream();
  EXPECT_EQ(sim::calls_in_callbacks(), 0U);
}

TEST_F(Callbacks, ADestructorMayLetGoOfAnotherObject) {
  witness inner;
  cudaUserObject_t const held = inner.make();
  witness outer{[&] { must(cudaUserObjectRelease(held, 1)); }};
  must(cudaUserObjectRelease(outer.make(), 1));
  EXPECT_TRUE(inner.ran_here());
  EXPECT_EQ(sim::alive().user_objects, 0U);
}

TEST_F(Callbacks, NoLockIsHeldWhileADestructorRuns) {
  // The control interface takes the simulator's lock: this would never return.
  sim::counts during;
  witness seen{[&] { during = sim::alive(); }};
  must(cudaUserObjectRelease(seen.make(), 1));
  EXPECT_EQ(during, sim::counts{});
}

}  // namespace
}  // namespace escrow::test
