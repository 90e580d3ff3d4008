// SPDX-License-Identifier: Apache-2.0
// Devices with as much memory as a test says, and what waits while memory is freed.
#include "call_elsewhere.hpp"
#include "deep.hpp"
#include "graph_nodes.hpp"

namespace escrow::test {
namespace {

constexpr std::size_t block = std::size_t{1} << 20;

class LimitedMemory : public fresh_runtime {
 protected:
  void start(bool is_stepped = false) {
    static_cast<void>(stream.release());  // the reset ends it
    sim::reset({.stepped = is_stepped, .device_memory = 4 * block});
    stream = make_stream();
  }
  LimitedMemory() { start(); }

  static std::size_t free_bytes() {
    std::size_t free = 0;
    std::size_t total = 0;
    must(cudaMemGetInfo(&free, &total));
    EXPECT_EQ(total, 4 * block);
    return free;
  }
  static void* allocated(std::size_t blocks) {
    void* memory = nullptr;
    must(cudaMalloc(&memory, blocks * block));
    return memory;
  }
  static cudaError_t try_malloc(std::size_t bytes) {
    void* memory = nullptr;
    auto const status = tried(cudaMalloc(&memory, bytes));
    if (status == cudaSuccess) must(cudaFree(memory));
    return status;
  }

  owned_stream stream;
};

TEST_F(LimitedMemory, IsRefusedBeyondWhatTheDeviceHasAndThereAgainWhenFreed) {
  cudaDeviceProp properties{};
  must(cudaGetDeviceProperties(&properties, 0));
  EXPECT_EQ(properties.totalGlobalMem, 4 * block);
  EXPECT_EQ(try_malloc(4 * block + 1), cudaErrorMemoryAllocation);
  EXPECT_EQ(try_malloc(SIZE_MAX), cudaErrorMemoryAllocation);
  EXPECT_EQ(try_malloc(4 * block), cudaSuccess);
  void* const first = allocated(3);
  EXPECT_EQ(free_bytes(), block);
  EXPECT_EQ(try_malloc(block + 1), cudaErrorMemoryAllocation);
  EXPECT_EQ(free_bytes(), block) << "a refused call changes nothing";
  void* const second = allocated(1);
  EXPECT_EQ(free_bytes(), 0U);
  void* of_pool = nullptr;
  EXPECT_EQ(tried(cudaMallocAsync(&of_pool, 1, stream)), cudaErrorMemoryAllocation);
  void* pinned = nullptr;
  EXPECT_EQ(cudaMallocHost(&pinned, block), cudaSuccess) << "the host's is another";
  must(cudaFreeHost(pinned));
  must(cudaFree(first));
  must(cudaFree(second));
  EXPECT_EQ(free_bytes(), 4 * block);
}

TEST_F(LimitedMemory, IsEachDevicesOwn) {
  void* const first = allocated(4);
  must(cudaSetDevice(1));
  EXPECT_EQ(free_bytes(), 4 * block);
  void* const second = allocated(4);
  EXPECT_EQ(free_bytes(), 0U);
  must(cudaFree(first));
  EXPECT_EQ(free_bytes(), 0U);
  must(cudaFree(second));
  must(cudaSetDevice(0));
}

TEST_F(LimitedMemory, CanBeChangedMeanwhile) {
  void* const memory = allocated(3);
  sim::set_device_memory(2 * block);
  EXPECT_EQ(try_malloc(1), cudaErrorMemoryAllocation);
  std::size_t free = 1;
  std::size_t total = 0;
  must(cudaMemGetInfo(&free, &total));
  EXPECT_EQ(free, 0U);
  EXPECT_EQ(total, 2 * block);
  sim::set_device_memory(4 * block);
  EXPECT_EQ(try_malloc(block), cudaSuccess);
  must(cudaFree(memory));
}

TEST_F(LimitedMemory, FreedInStreamOrderIsThereForTheSameStreamAndForOthersOnceItIsFreed) {
  for (bool const is_stepped : {false, true}) {
    start(is_stepped);
    owned_stream const other = make_stream();
    pinned_flag flag;
    must(launch_wait_flag(stream, flag.get()));
    void* memory = nullptr;
    must(cudaMallocAsync(&memory, 4 * block, stream));
    must(cudaFreeAsync(memory, stream));
    void* again = nullptr;
    EXPECT_EQ(tried(cudaMallocAsync(&again, 1, other)), cudaErrorMemoryAllocation);
    must(cudaMallocAsync(&again, 4 * block, stream));
    EXPECT_EQ(tried(cudaMallocAsync(&memory, 1, stream)), cudaErrorMemoryAllocation);
    flag.raise();
    must(cudaFreeAsync(again, stream));
    must(cudaStreamSynchronize(stream));
    EXPECT_EQ(cudaMallocAsync(&again, 4 * block, other), cudaSuccess);
    must(cudaFreeAsync(again, other));
    must(cudaStreamSynchronize(other));
  }
}

// As CUDA's manual says.
TEST_F(LimitedMemory, OfADestroyedPoolStaysUntilItIsFreed) {
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location = {.type = cudaMemLocationTypeDevice, .id = 0};
  cudaMemPool_t pool = nullptr;
  must(cudaMemPoolCreate(&pool, &properties));
  void* memory = nullptr;
  must(cudaMallocFromPoolAsync(&memory, 4 * block, pool, stream));
  must(cudaMemPoolDestroy(pool));
  must(cudaMemsetAsync(memory, 0, block, stream));
  must(cudaFreeAsync(memory, stream));
  must(cudaStreamSynchronize(stream));
  must(cudaMalloc(&memory, 4 * block));  // its memory is there again
  must(cudaFree(memory));
}

class FreesThatBlock : public fresh_runtime {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(FreesThatBlock, LaunchesOnlyIfTheOptionsSayThat) {
  for (bool const does_block : {false, true}) {
    sim::reset({.frees_block_launches = does_block});
    pinned_flag flag;
    pinned_ints cell;
    owned_stream const busy = make_stream();
    owned_stream const other = make_stream();
    must(launch_wait_flag(busy, flag.get()));
    void* memory = nullptr;
    must(cudaMalloc(&memory, 16));
    call_elsewhere const free([&] { return cudaFree(memory); });
    EXPECT_TRUE(free.stays_blocked());
    call_elsewhere const launch([&] { return launch_add(other, cell.data(), 1); });
    EXPECT_EQ(launch.stays_blocked(), does_block);
    flag.raise();
    EXPECT_TRUE(free.succeeds_soon());
    EXPECT_TRUE(launch.succeeds_soon());
    must(cudaStreamSynchronize(other));
    EXPECT_EQ(cell.load(), 1);
  }
}

TEST_F(FreesThatBlock, NoLaunchIntoACapture) {
  sim::reset({.frees_block_launches = true});
  pinned_flag flag;
  owned_stream const busy = make_stream();
  owned_stream const stream = make_stream();
  void* memory = nullptr;
  must(cudaMalloc(&memory, 16));
  must(launch_wait_flag(busy, flag.get()));
  call_elsewhere const free([&] { return cudaFree(memory); });
  EXPECT_TRUE(free.stays_blocked());
  capture open{stream, cudaStreamCaptureModeRelaxed};
  must(launch_tiny(stream));
  must(open.end());
  flag.raise();
  EXPECT_TRUE(free.succeeds_soon());
}

TEST_F(FreesThatBlock, EndTheProcessIfTheKernelWaitsForALaunch) {
  EXPECT_DEATH(
      {
        sim::reset({.frees_block_launches = true, .sync_limit = std::chrono::seconds{1}});
        pinned_ints flag;
        owned_stream const busy = make_stream();
        owned_stream const other = make_stream();
        void* memory = nullptr;
        must(cudaMalloc(&memory, 16));
        must(launch_wait_flag(busy, flag.data()));
        call_elsewhere const free([&] { return cudaFree(memory); });
        static_cast<void>(free.stays_blocked());
        must(launch_add(other, flag.data(), 1));  // hangs on a GPU
      },
      "blocked for longer than options::sync_limit");
}

}  // namespace
}  // namespace escrow::test
