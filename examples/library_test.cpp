// SPDX-License-Identifier: Apache-2.0
// A library's own tests with GoogleTest and escrow::simulated. They need no GPU, and can do what a
// GPU cannot: run the work in many orders, each decided by a seed, make any call fail, and count
// what is left.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <escrow/pool.hpp>
#include <escrow/sim.hpp>

namespace {

namespace sim = escrow::sim;
using escrow::check;

constexpr std::size_t count = 64;
constexpr std::size_t bytes = count * sizeof(int);

// The library under test: copies by way of scratch memory, the second half of the way on `side`.
void copy_on_two(escrow::scratch_pool& scratch, cudaStream_t stream, cudaStream_t side, int* to,
                 int const* from, bool waits) {
  auto between = scratch.claim<int>(stream, count);
  escrow::event const filled;
  check(cudaMemcpyAsync(between.data(), from, bytes, cudaMemcpyDefault, stream), "cudaMemcpyAsync");
  filled.ref().record(stream);
  if (waits) filled.ref().wait(side);
  check(cudaMemcpyAsync(to, between.data(), bytes, cudaMemcpyDefault, side), "cudaMemcpyAsync");
  between.release(side);
}

class CopyOnTwo : public testing::Test {
 protected:
  // Once in a program: what Escrow keeps for later use, as events, does not survive another reset.
  static void SetUpTestSuite() { sim::reset({.stepped = true}); }
  void SetUp() override {
    for (cudaStream_t& each : streams) check(cudaStreamCreate(&each), "cudaStreamCreate");
  }
  void TearDown() override {
    sim::run_until_idle();
    EXPECT_TRUE(scratch.close_for({}).empty());
    while (worker.poll() > 0) continue;
    EXPECT_EQ(sim::alive().device_allocations, 0U);
    for (cudaStream_t each : streams) check(cudaStreamDestroy(each), "cudaStreamDestroy");
  }
  // Whether the copy is right if `seed` decides what the GPU does next.
  bool is_right(std::uint64_t seed, bool waits = true) {
    sim::reseed(seed);
    std::fill_n(from.data(), count, static_cast<int>(seed));
    copy_on_two(scratch, streams[0], streams[1], to.data(), from.data(), waits);
    sim::run_until_idle();
    return std::equal(from.data(), from.data() + count, to.data());
  }

  escrow::deleter worker{{.own_worker = false}};  // no thread: only the seed decides
  escrow::scratch_pool scratch{{.deleter = &worker}};
  escrow::device_buffer<int> from{count, escrow::memory_source::pinned_host()};
  escrow::device_buffer<int> to{count, escrow::memory_source::pinned_host()};
  std::array<cudaStream_t, 2> streams{};
};

TEST_F(CopyOnTwo, IsRightInAnyOrder) {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) EXPECT_TRUE(is_right(seed)) << seed;
}

// Whatever runs first: the simulator looks whether anything orders what uses the same memory.
TEST_F(CopyOnTwo, NeedsItsWait) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(is_right(1, false), "a copy on stream .* nothing orders the two");
}

TEST_F(CopyOnTwo, LosesNothingIfACopyFails) {
  for (std::uint64_t const nth : {1U, 2U}) {
    sim::fail_call("cudaMemcpyAsync", cudaErrorMemoryAllocation, nth);
    EXPECT_THROW(is_right(nth), escrow::cuda_error) << nth;
    sim::run_until_idle();  // what was enqueued before still reads `from`
    EXPECT_TRUE(is_right(nth)) << nth;
  }
}

}  // namespace
