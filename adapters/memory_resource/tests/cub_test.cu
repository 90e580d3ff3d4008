// SPDX-License-Identifier: Apache-2.0
// CUB, Thrust and cuda::buffer on Escrow's memory in a capture: no node allocates, and the graph
// may be launched again.
#include <thrust/execution_policy.h>
#include <thrust/scan.h>

#include <cub/device/device_reduce.cuh>
#include <cuda/buffer>
#include <cuda/std/execution>

#include "resource_world.hpp"

namespace escrow::test {
namespace {

/// Scratch for Thrust on one stream.
struct thrust_scratch {
  using value_type = char;

  [[nodiscard]] char* allocate(std::ptrdiff_t bytes) {
    return static_cast<char*>(from.allocate(stream, static_cast<std::size_t>(bytes),
                                            stream_allocator::default_alignment));
  }
  void deallocate(char* scratch, std::size_t bytes) {
    from.deallocate(stream, scratch, bytes, stream_allocator::default_alignment);
  }

  memory_resource from;
  cuda::stream_ref stream;
};

class Cub : public resource_world {
 protected:
  static constexpr int numbers = 1 << 20;  // more than one block of threads can sum

  void SetUp() override {
    input = static_cast<int*>(resource.allocate_sync(bytes, alignment));
    output = static_cast<int*>(resource.allocate_sync(bytes, alignment));
    must(launch_fill(one, input, numbers, 1));
    sync(one);
  }
  void TearDown() override {
    sync_all();
    resource.deallocate_sync(input, bytes, alignment);
    resource.deallocate_sync(output, bytes, alignment);
    resource_world::TearDown();
  }
  /// Captures the algorithm, which leaves the sum of the input in the first cell, and launches the
  /// graph with other inputs.
  template <class Algorithm>
  void expect_right_sums(Algorithm algorithm) {
    owned_graph const captured = captured_plainly([&](cudaStream_t on) { algorithm(on); });
    std::size_t const held = resource.memory().pool().stats().bytes_in_graphs;
    EXPECT_GT(held, 0U) << "the algorithm took no scratch";
    owned_exec const exec = instantiate(captured);
    for (int value : {1, 2, 3}) {
      must(launch_fill(two, input, numbers, value));
      must(cudaGraphLaunch(exec, two));
      sync(two);
      EXPECT_EQ(cells.load(0), value * numbers);
    }
    expect_right_runs(captured);
  }

  static constexpr std::size_t bytes = numbers * sizeof(int);
  int* input = nullptr;
  int* output = nullptr;
};

TEST_F(Cub, ReducesWithScratchOfItsEnvironment) {
  expect_right_sums([&](cudaStream_t on) {
    must(cub::DeviceReduce::Sum(input, cells.data(), numbers,
                                cuda::std::execution::env{cuda::stream_ref(on), resource}));
  });
}

TEST_F(Cub, ThrustScansWithScratchOfAnAllocator) {
  expect_right_sums([&](cudaStream_t on) {
    thrust_scratch scratch{resource, cuda::stream_ref(on)};
    thrust::inclusive_scan(thrust::cuda::par_nosync(scratch).on(on), input, input + numbers,
                           output);
    must(launch_copy(on, cells.data(), output + numbers - 1, 1));
  });
}

TEST_F(Cub, ABufferHasEscrowsMemory) {
  expect_right_sums([&](cudaStream_t on) {
    auto sums = cuda::make_buffer<int>(cuda::stream_ref(on), resource, 1, 0);
    must(cub::DeviceReduce::Sum(input, sums.data(), numbers,
                                cuda::std::execution::env{cuda::stream_ref(on), resource}));
    must(launch_copy(on, cells.data(), sums.data(), 1));
  });
}

}  // namespace
}  // namespace escrow::test
