// SPDX-License-Identifier: Apache-2.0
// RMM's containers and pools on Escrow's memory, in captures and outside.
#include <map>
#include <mutex>
#include <rmm/device_buffer.hpp>
#include <rmm/device_uvector.hpp>
#include <rmm/error.hpp>
#include <rmm/mr/cuda_memory_resource.hpp>
#include <rmm/mr/per_device_resource.hpp>
#include <rmm/mr/pool_memory_resource.hpp>

#include "resource_world.hpp"

namespace escrow::test {
namespace {

class Rmm : public resource_world {
 protected:
  rmm::mr::cuda_memory_resource cuda_memory;

  void SetUp() override { rmm::mr::set_current_device_resource(resource); }
  void TearDown() override {
    rmm::mr::reset_current_device_resource();  // RMM has no copy any more
    resource_world::TearDown();
  }
};

TEST_F(Rmm, AVectorHasTheMemoryOfTheCurrentResource) {
  auto const uses_one = [&](cudaStream_t on) {
    rmm::device_uvector<int> numbers(ints, cuda::stream_ref(on));
    EXPECT_EQ(rmm::device_async_resource_ref(resource), numbers.memory_resource());
    fill_and_check(numbers.data(), on, 1);
  };
  uses_one(one);
  owned_graph const captured = captured_plainly(uses_one);
  EXPECT_EQ(resource.memory().pool().stats().bytes_in_use, 0U);
  EXPECT_EQ(resource.memory().pool().stats().bytes_in_graphs, size);
  expect_right_runs(captured);
}

// RMM's copies cannot be captured with CUDA 13: https://github.com/rapidsai/rmm/issues/2518.
TEST_F(Rmm, ABufferIsCopiedAndGrowsOutsideOfCaptures) {
  cuda::stream_ref const on(one.get());
  rmm::device_buffer source(size, on);
  fill_and_check(source.data(), one, 5);
  rmm::device_buffer copy(source, on);
  copy.resize(4 * size, on);
  check(copy.data(), one, 5);
  copy.resize(size, on);
  copy.shrink_to_fit(on);
  check(copy.data(), one, 5);
  sync(one);
}

TEST_F(Rmm, APoolTakesItsMemoryFromEscrow) {
  constexpr std::size_t bytes = std::size_t{1} << 20;
  {
    rmm::mr::pool_memory_resource pool(resource, bytes);
    EXPECT_EQ(resource.memory().pool().stats().bytes_in_use, bytes);
    use(pool, one, 1);
    void* const first = filled(pool, one, 2);
    void* const second = filled(pool, two, 3);
    sync_all();
    free_on(pool, one, first);
    free_on(pool, two, second);
    rmm::device_uvector<int> numbers(ints, cuda::stream_ref(one.get()), pool);
    fill_and_check(numbers.data(), one, 4);
  }
  sync(one);
  EXPECT_EQ(resource.memory().pool().stats().bytes_in_use, 0U);
}

TEST_F(Rmm, EscrowTakesItsMemoryFromAPoolOfRmm) {
  rmm::mr::pool_memory_resource below(cuda_memory, std::size_t{1} << 20);
  std::mutex mutex;  // guards `sizes`
  std::map<void*, std::size_t> sizes;
  memory_source source;
  source.allocate = [&](void** address, std::size_t bytes) {
    try {
      *address = below.allocate_sync(bytes, alignment);
    } catch (rmm::bad_alloc const&) {
      return cudaErrorMemoryAllocation;
    }
    std::lock_guard const lock(mutex);
    sizes[*address] = bytes;
    return cudaSuccess;
  };
  source.free = [&](void* address) {
    std::lock_guard const lock(mutex);
    below.deallocate_sync(address, sizes.extract(address).mapped(), alignment);
    return cudaSuccess;
  };
  {
    memory_resource above(stream_allocator(options(8), {.source = source}));
    use(above, one, 1);
    {
      owned_graph const captured = captured_plainly([&](cudaStream_t on) { use(above, on, 2); });
      expect_right_runs(captured);
    }
    EXPECT_FALSE(sizes.empty());
    sync_all();
  }
  // CUDA lets go of what the graph held when it likes, and only then does the worker free it.
  EXPECT_TRUE(wait_until([&] {
    std::lock_guard const lock(mutex);
    return sizes.empty();
  }));
}

}  // namespace
}  // namespace escrow::test
