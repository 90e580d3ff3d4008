// SPDX-License-Identifier: Apache-2.0
// Memory pools of a program's own: what they keep, what they wait for, and in which captures.
#include "call_elsewhere.hpp"
#include "graph_nodes.hpp"

namespace escrow::test {
namespace {

constexpr std::size_t mebibyte = std::size_t{1} << 20;

class MemoryPool : public testing::Test {
 protected:
  MemoryPool() {
    cudaMemPoolProps properties{};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location = {.type = cudaMemLocationTypeDevice, .id = 0};
    must(cudaMemPoolCreate(&pool, &properties));
    auto keep = std::numeric_limits<std::uint64_t>::max();
    must(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep));
  }
  ~MemoryPool() override { must(cudaMemPoolDestroy(pool)); }

  [[nodiscard]] void* allocate(std::size_t bytes) const {
    void* memory = nullptr;
    must(cudaMallocFromPoolAsync(&memory, bytes, pool, own));
    must(cudaStreamSynchronize(own));
    return memory;
  }
  void free(void* memory) const {
    must(cudaFreeAsync(memory, own));
    must(cudaStreamSynchronize(own));
  }
  [[nodiscard]] std::uint64_t get(cudaMemPoolAttr which) const {
    std::uint64_t value = 0;
    must(cudaMemPoolGetAttribute(pool, which, &value));
    return value;
  }
  [[nodiscard]] std::uint64_t used() const { return get(cudaMemPoolAttrUsedMemCurrent); }
  [[nodiscard]] std::uint64_t reserved() const { return get(cudaMemPoolAttrReservedMemCurrent); }

  cudaMemPool_t pool = nullptr;
  owned_stream own = make_stream();
  owned_stream busy = make_stream();
};

TEST_F(MemoryPool, KeepsWhatIsFreedUntilItIsTrimmed) {
  void* const memory = allocate(64 * mebibyte);
  EXPECT_GE(used(), 64 * mebibyte);
  EXPECT_GE(reserved(), used());
  must(cudaMemPoolTrimTo(pool, 0));
  EXPECT_GE(reserved(), 64 * mebibyte) << "it is in use";
  free(memory);
  EXPECT_EQ(used(), 0U);
  EXPECT_GE(reserved(), 64 * mebibyte);
  must(cudaMemPoolTrimTo(pool, 64 * mebibyte));
  EXPECT_GE(reserved(), 64 * mebibyte);
  must(cudaMemPoolTrimTo(pool, 0));
  EXPECT_EQ(reserved(), 0U);
}

TEST_F(MemoryPool, WaitsForNoWorkAndKeepsNobodyFromLaunching) {
  pinned_flag flag;
  pinned_ints cell;
  must(launch_add(busy, cell.data(), 0));  // it is loaded
  must(cudaStreamSynchronize(busy));
  must(launch_wait_flag(busy, flag.get()));
  free(allocate(mebibyte));
  must(cudaMemPoolTrimTo(pool, 0));
  owned_stream const other = make_stream();
  must(launch_add(other, cell.data(), 1));
  must(cudaStreamSynchronize(other));
  EXPECT_EQ(cell.load(), 1);
  flag.raise();
  must(cudaStreamSynchronize(busy));
}

TEST_F(MemoryPool, GivesMemoryThatCudaFreeFreesWithoutAWait) {
  pinned_flag flag;
  void* const memory = allocate(mebibyte);
  must(launch_wait_flag(busy, flag.get()));
  call_elsewhere const freed([&] { return cudaFree(memory); });
  EXPECT_TRUE(freed.succeeds_soon()) << "it waits for nothing";
  flag.raise();
  must(cudaStreamSynchronize(busy));
}

TEST_F(MemoryPool, GivesBackWhatItKeepsWhereMemoryIsOutForOthers) {
  std::size_t free_bytes = 0;
  std::size_t total = 0;
  must(cudaMemGetInfo(&free_bytes, &total));
#ifdef ESCROW_TEST_RUNTIME_SIM
  constexpr std::size_t most = 256 * mebibyte;
  sim::set_device_memory(most);
  free_bytes = most;
#endif
  free(allocate(free_bytes - free_bytes / 4));
  void* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, free_bytes / 2), cudaSuccess);
  EXPECT_EQ(used(), 0U);
  must(cudaFree(memory));
#ifdef ESCROW_TEST_RUNTIME_SIM
  sim::set_device_memory(sim::options{}.device_memory);
#endif
}

TEST_F(MemoryPool, IsForCapturesInRelaxedModeAlone) {
  std::uint64_t value = 0;
  std::vector<std::function<cudaError_t()>> const calls = {
      [&] { return cudaMemPoolTrimTo(pool, 0); },
      [&] { return cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &value); }};
  for (auto const& each : calls) {
    capture relaxed{busy, cudaStreamCaptureModeRelaxed};
    EXPECT_EQ(each(), cudaSuccess);
    must(relaxed.end());
  }
  capture strict{busy, cudaStreamCaptureModeGlobal};
  EXPECT_EQ(tried(calls[1]()), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(tried(strict.end()), cudaErrorStreamCaptureInvalidated);
}

}  // namespace
}  // namespace escrow::test
