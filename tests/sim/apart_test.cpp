// SPDX-License-Identifier: Apache-2.0
// With ESCROW_MEMORY=apart memory of the device is not for the host, nor the host's for kernels.
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>
#include <vector>

#include "deep.hpp"
#include "graph_nodes.hpp"
#include "pool_world.hpp"

namespace escrow::test {
namespace {

[[maybe_unused]] int const is_asked = ::setenv("ESCROW_MEMORY", "apart", 1);  // before main()

class MemoryApart : public pool_world {
 protected:
  // A process of its own, since this one has threads.
  MemoryApart() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }

  static void expect_host_refused(int volatile* memory) {
    constexpr auto text = "the host reads or writes memory of the device at 0x.*cudaMemcpyAsync";
    EXPECT_DEATH(static_cast<void>(*memory), text);
    EXPECT_DEATH(*memory = 1, text);
  }
  void expect_argument_refused(int* memory) {
    EXPECT_DEATH(static_cast<void>(launch_add(one, memory, 1)),
                 "cudaLaunchKernel: kernel .*add.*, argument 0: 0x.* is in no memory that CUDA has "
                 "allocated.*pinned memory");
  }
  // What kernels and copies do there is as ever.
  void expect_works(int* memory) {
    must(launch_fill(one, memory, 4, 7));
    std::array<int, 4> read{};
    must(cudaMemcpyAsync(read.data(), memory, sizeof(read), cudaMemcpyDeviceToHost, one));
    sync(one);
    EXPECT_EQ(read, (std::array<int, 4>{7, 7, 7, 7}));
  }

  scratch_pool scratch{options(16)};
};

TEST_F(MemoryApart, OfAPoolIsTheDevicesAlone) {
  for (std::size_t const count : {std::size_t{64}, std::size_t{4} << 20}) {  // the second is mapped
    auto lease = scratch.claim<int>(one, count);
    expect_works(lease.data());
    expect_host_refused(lease.data());
    expect_host_refused(lease.data() + count - 1);
  }
}

TEST_F(MemoryApart, OfAnArenaIsTheDevicesAlone) {
  sharing_group group;
  scratch_pool shared(with(options(16), &pool_options::group, group));
  int* memory = nullptr;
  graph_exec exec(captured([&](cudaStream_t on) {
    auto lease = shared.claim<int>(on, 64);
    memory = lease.data();
    must(launch_fill(on, memory, 64, 1));
  }));
  exec.launch(one);
  sync(one);
  expect_host_refused(memory);
}

void map_on_host(int* data, int (*map)(int), void* tag) {
  *data = map(*data) + (tag != nullptr ? 1 : 0);
}
auto* const mapped = sim::register_kernel<&map_on_host>("mapped");
int twice(int value) {
  return 2 * value;
}

// What is no address of memory, and what is counted from 1.
TEST_F(MemoryApart, TakesPointersThatNameNoMemory) {
  auto const lease = scratch.claim<int>(one, 64);
  must(launch_fill(one, lease.data(), 64, 7));
  auto* data = lease.data();
  int (*map)(int) = &twice;
  void* tag = reinterpret_cast<void*>(~std::uintptr_t{0});
  std::array<void*, 3> arguments{&data, &map, &tag};
  must(cudaLaunchKernel(reinterpret_cast<void const*>(mapped), {1}, {1}, arguments.data(), 0, one));
  sync(one);
  must(launch_add(one, lease.data() + 1, 1));
}

// A staging buffer that is written for the next copy too early.
TEST_F(MemoryApart, ToldIfTheHostWritesPinnedMemoryThatACopyHasYetToRead) {
  constexpr std::size_t count = 4096;
  constexpr auto text = "the host writes pinned memory at 0x.* that a copy, enqueued before";
  auto const lease = scratch.claim<int>(one, count);
  auto const copy = [&](int const* from, cudaStream_t on) {
    must(cudaMemcpyAsync(lease.data(), from, count * sizeof(int), cudaMemcpyHostToDevice, on));
  };
  void* memory = nullptr;
  must(cudaMallocHost(&memory, count * sizeof(int)));
  int volatile* const pinned = static_cast<int*>(memory);
  *pinned = 1;
  hold_up(one);
  copy(static_cast<int*>(memory), one);
  EXPECT_EQ(*pinned, 1);
  EXPECT_DEATH(*pinned = 2, text);
  flag.raise();
  sync(one);
  *pinned = 2;
  flag.lower();
  test::capture open{one, cudaStreamCaptureModeThreadLocal};
  copy(static_cast<int*>(memory), one);
  must(open.end());
  owned_exec const exec = instantiate(open.graph());
  *pinned = 3;
  hold_up(one);
  must(cudaGraphLaunch(exec, one));
  EXPECT_DEATH(*pinned = 4, text);
  flag.raise();
  sync(one);
  must(cudaFreeHost(memory));
}

TEST_F(MemoryApart, ToldIfTheHostUsesPinnedMemoryThatACopyHasYetToWrite) {
  constexpr std::size_t count = 4096;
  auto const lease = scratch.claim<int>(one, count);
  void* memory = nullptr;
  must(cudaMallocHost(&memory, count * sizeof(int)));
  int volatile* const pinned = static_cast<int*>(memory);
  must(launch_fill(one, lease.data(), count, 7));
  hold_up(one);
  must(cudaMemcpyAsync(memory, lease.data(), count * sizeof(int), cudaMemcpyDeviceToHost, one));
  EXPECT_DEATH(static_cast<void>(*pinned),
               "the host uses pinned memory at 0x.* yet to write: wait");
  flag.raise();
  sync(one);
  EXPECT_EQ(*pinned, 7);
  EXPECT_EQ(pinned[count - 1], 7);
  must(cudaFreeHost(memory));
}

// The host may use what lies beside that, also in the same page.
TEST_F(MemoryApart, ToldOfEachByteOfPinnedMemory) {
  auto const lease = scratch.claim<int>(one, 64);
  must(launch_fill(one, lease.data(), 64, 7));
  void* memory = nullptr;
  must(cudaMallocHost(&memory, 64 * sizeof(int)));
  int volatile* const pinned = static_cast<int*>(memory);
  pinned[8] = 1;
  hold_up(one);
  must(cudaMemcpyAsync(static_cast<int*>(memory) + 4, lease.data(), sizeof(int),
                       cudaMemcpyDeviceToHost, one));
  must(cudaMemcpyAsync(lease.data(), static_cast<int*>(memory) + 8, sizeof(int),
                       cudaMemcpyHostToDevice, one));
  EXPECT_DEATH(static_cast<void>(pinned[4]), "the host uses pinned memory at 0x.* yet to write");
  EXPECT_DEATH(pinned[8] = 2, "the host writes pinned memory at 0x.* yet to read");
  EXPECT_EQ(pinned[8], 1);
  pinned[3] = 2;
  pinned[5] = 2;
  flag.raise();
  sync(one);
  EXPECT_EQ(pinned[4], 7);
  pinned[8] = 3;
  must(cudaFreeHost(memory));
}

// Each on a page of its own.
TEST_F(MemoryApart, TakesPinnedMemoryThatEarlierWorkWrites) {
  constexpr std::size_t of_page = 1024;
  constexpr std::size_t bytes = 3 * of_page * sizeof(int);
  auto const lease = scratch.claim<int>(one, 3 * of_page);
  void* memory = nullptr;
  must(cudaMallocHost(&memory, bytes));
  auto* const pinned = static_cast<int*>(memory);
  std::fill_n(pinned, 3 * of_page, 0);
  hold_up(one);
  must(launch_fill(one, lease.data(), of_page, 7));
  must(cudaMemcpyAsync(pinned, lease.data(), of_page * sizeof(int), cudaMemcpyDeviceToHost, one));
  must(launch_add(one, pinned + of_page, 1));
  must(cudaLaunchHostFunc(
      one, [](void* at) { ++*static_cast<int*>(at); }, pinned + 2 * of_page));
  must(cudaMemcpyAsync(lease.data(), pinned, bytes, cudaMemcpyHostToDevice, one));
  flag.raise();
  sync(one);
  EXPECT_EQ(pinned[0], 7);
  EXPECT_EQ(pinned[of_page], 1);
  EXPECT_EQ(pinned[2 * of_page], 1);
  must(cudaFreeHost(memory));
}

TEST_F(MemoryApart, OfCudasOwnCallsIsTheDevicesAlone) {
  int* memory = nullptr;
  must(cudaMalloc(&memory, 4096));
  expect_works(memory);
  expect_host_refused(memory);
  must(cudaFree(memory));
  must(cudaMallocAsync(&memory, 4096, one));
  expect_works(memory);
  expect_host_refused(memory);
  must(cudaFreeAsync(memory, one));
  sync(one);
}

TEST_F(MemoryApart, IsOpenToKernelsOfSeveralStreams) {
  auto first = scratch.claim<int>(one, 1 << 16);
  auto second = scratch.claim<int>(two, 1 << 16);
  for (int i = 0; i < 64; ++i) {
    must(launch_fill(one, first.data(), 1 << 16, i));
    must(launch_fill(two, second.data(), 1 << 16, i));
  }
  sync(one);
  sync(two);
}

TEST_F(MemoryApart, OfTheHostIsNoArgumentOfAKernel) {
  int local = 0;
  std::vector<int> allocated(16);
  expect_argument_refused(&local);
  expect_argument_refused(allocated.data());
  must(launch_add(one, cells.data(), 1));  // pinned
  auto lease = scratch.claim<int>(one, 64);
  must(launch_copy(one, lease.data() + 64, cells.data(), 0));  // an end, of which nothing is used
  sync(one);
}

TEST_F(MemoryApart, OfTheHostIsNoArgumentInAGraphEither) {
  int local = 0;
  graph_exec exec(captured([&](cudaStream_t on) { must(launch_add(on, &local, 1)); }));
  EXPECT_DEATH(exec.launch(one),
               "cudaGraphLaunch: kernel .*add.*, argument 0: 0x.* is in no memory that CUDA");
}

TEST_F(MemoryApart, LeavesOtherFaultsToTheirHandler) {
  if (is_sanitized) GTEST_SKIP() << "its handler reports";
  auto lease = scratch.claim<int>(one, 64);  // the handler is there
  EXPECT_EXIT(*reinterpret_cast<int volatile*>(8) = 1, testing::KilledBySignal(SIGSEGV), "");
}

// A claim of so many bytes as its block has, an allocation, and claims side by side in an arena.
TEST_F(MemoryApart, ToldIfAKernelWritesBehindIt) {
  constexpr std::size_t count = 1024;
  auto const expect_told = [&](int* memory, char const* of) {
    must(launch_fill(one, memory, count, 7));
    sync(one);
    EXPECT_DEATH(
        {
          must(launch_fill(one, memory, count + 1, 7));
          sync(one);
        },
        std::string("kernel .*fill.*, argument 0: it wrote at 0x.*, 0 bytes behind ") + of);
  };
  auto const lease = scratch.claim<int>(one, count);
  expect_told(lease.data(), "what its claim of .blocks of 4096 bytes. has");
  void* memory = nullptr;
  must(cudaMalloc(&memory, count * sizeof(int)));
  // A sanitizer's backtrace() may have no function that called.
  expect_told(static_cast<int*>(memory),
              is_sanitized ? "the allocation" : "the allocation.*  enqueued by cudaLaunchKernel");
  must(cudaFree(memory));

  sharing_group const group({.label = "batches"});
  scratch_pool grouped(with(options(4), &pool_options::group, group));
  auto const filling = [&](std::size_t values) {
    return captured([&](cudaStream_t on) {
      auto const first = grouped.claim<int>(on, count);
      auto const second = grouped.claim<int>(on, count);
      must(launch_fill(on, second.data(), count, 7));
      must(launch_fill(on, first.data(), values, 7));
    });
  };
  graph_exec right(filling(count));
  right.launch(one);
  sync(one);
  graph_exec wrong(filling(count + 1));
  EXPECT_DEATH(
      {
        wrong.launch(one);
        sync(one);
      },
      "fill.*, argument 0: it wrote at 0x.*, 0 bytes behind what its claim of .batches. has");
}

}  // namespace
}  // namespace escrow::test
