// Memory is really allocated and really freed, so that a sanitizer sees what a kernel touches too
// late.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "fresh_runtime.hpp"
#include "handles.hpp"
#include "kernels.hpp"
#include "memory.hpp"

namespace escrow::test {
namespace {

using Memory = fresh_runtime;

int* device_ints(std::size_t n) {
  void* memory = nullptr;
  must(cudaMalloc(&memory, n * sizeof(int)));
  return static_cast<int*>(memory);
}

TEST_F(Memory, FreeWaitsForTheDevicesWorkFirst) {
  sim::reset({.stepped = true});
  int* const data = device_ints(4);
  pinned_ints mismatches;
  owned_stream const stream = make_stream();
  must(launch_fill(stream, data, 4, 5));
  must(launch_check(stream, data, 4, 5, mismatches.data()));
  ASSERT_EQ(cudaFree(data), cudaSuccess);
  EXPECT_EQ(cudaStreamQuery(stream), cudaSuccess);
  EXPECT_EQ(mismatches.load(), 0);
}

TEST_F(Memory, FreeAsyncFreesInStreamOrder) {
  sim::reset({.stepped = true});
  owned_stream const stream = make_stream();
  void* data = nullptr;
  must(cudaMallocAsync(&data, 16, stream));
  must(launch_fill(stream, static_cast<int*>(data), 4, 5));
  must(cudaFreeAsync(data, stream));
  EXPECT_EQ(sim::alive().device_allocations, 1U);
  must(cudaStreamSynchronize(stream));
  EXPECT_EQ(sim::alive().device_allocations, 0U);
}

TEST_F(Memory, WhatIsFreedTwiceIsRefused) {
  owned_stream const stream = make_stream();
  pinned_flag flag;
  void* data = nullptr;
  must(cudaMallocAsync(&data, 16, stream));
  must(launch_wait_flag(stream, flag.get()));
  must(cudaFreeAsync(data, stream));
  EXPECT_EQ(cudaFreeAsync(data, stream), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(data), cudaErrorInvalidValue);
}

TEST_F(Memory, AllocationsSurviveWithTheirContents) {
  int* const data = device_ints(3);
  std::vector<int> const in{1, 2, 3};
  std::vector<int> out(3);
  must(cudaMemcpy(data, in.data(), sizeof(int) * 3, cudaMemcpyHostToDevice));
  must(cudaMemcpy(out.data(), data, sizeof(int) * 3, cudaMemcpyDeviceToHost));
  EXPECT_EQ(in, out);
  must(cudaMemset(data, 0, sizeof(int) * 3));
  must(cudaMemcpy(out.data(), data, sizeof(int) * 3, cudaMemcpyDeviceToHost));
  EXPECT_EQ(out, std::vector<int>(3, 0));
  must(cudaFree(data));
}

#ifdef __SANITIZE_ADDRESS__
TEST_F(Memory, AKernelThatTouchesFreedMemoryIsCaught) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        int* const data = device_ints(4);
        must(cudaFree(data));
        owned_stream const stream = make_stream();
        must(launch_fill(stream, data, 4, 5));
        must(cudaStreamSynchronize(stream));
      },
      "heap-use-after-free");
}
#endif

}  // namespace
}  // namespace escrow::test
