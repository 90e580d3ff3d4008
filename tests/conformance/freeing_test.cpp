// SPDX-License-Identifier: Apache-2.0
// What cudaFree and cudaFreeHost wait for, and what waits for them; how much memory there is.
#include "call_elsewhere.hpp"
#include "graph_nodes.hpp"

namespace escrow::test {
namespace {

class FreeBesideAKernel : public testing::Test {
 protected:
  void SetUp() override {
#ifdef ESCROW_TEST_RUNTIME_SIM
    sim::set_frees_block_launches(true);
#endif
    // All kernels are loaded and the exec is uploaded, which may block by itself.
    raised.raise();
    must(launch_wait_flag(busy, raised.get()));
    must(launch_add(other, cells.data(), 1));
    run(exec, other);
    must(cudaStreamSynchronize(busy));
    cells.store(0, 0);
    must(launch_wait_flag(busy, flag.get()));
  }
  void TearDown() override {
    flag.raise();
    must(cudaStreamSynchronize(busy));
#ifdef ESCROW_TEST_RUNTIME_SIM
    sim::set_frees_block_launches(false);
#endif
  }
  [[nodiscard]] owned_exec make_exec() {
    owned_graph const graph = make_graph();
    add_kernel(graph, add_call(cells.data(), 1));
    return instantiate(graph);
  }

  pinned_flag raised;
  pinned_flag flag;
  pinned_ints cells;
  owned_stream busy = make_stream();
  owned_stream other = make_stream();
  owned_exec exec = make_exec();
};

TEST_F(FreeBesideAKernel, WaitsForItAlsoOnAnotherStreamAndAlsoIfTheMemoryIsTheHosts) {
  for (bool const is_host : {false, true}) {
    pinned_flag own_flag;
    void* memory = nullptr;
    must(is_host ? cudaMallocHost(&memory, 256) : cudaMalloc(&memory, 256));
    must(launch_wait_flag(other, own_flag.get()));
    call_elsewhere const free([&] { return is_host ? cudaFreeHost(memory) : cudaFree(memory); });
    EXPECT_TRUE(free.stays_blocked());
    flag.raise();
    EXPECT_TRUE(free.stays_blocked()) << "the other kernel still runs";
    own_flag.raise();
    EXPECT_TRUE(free.succeeds_soon());
  }
}

#ifdef ESCROW_TEST_RUNTIME_SIM
// Which calls of other threads wait meanwhile differs between hosts: launches on all that were
// measured, on one of two H100s records of events, too.
TEST_F(FreeBesideAKernel, BlocksLaunchesMeanwhileButNoRecordOrQueryOfAnEvent) {
  owned_event const event = make_event();
  void* memory = nullptr;
  must(cudaMalloc(&memory, 256));
  call_elsewhere launch([&] { return launch_add(other, cells.data(), 1); }, call_elsewhere::at::go);
  call_elsewhere graph_launch([&] { return cudaGraphLaunch(exec, other); }, call_elsewhere::at::go);
  ASSERT_TRUE(launch.is_ready() && graph_launch.is_ready());
  call_elsewhere const free([&] { return cudaFree(memory); });
  EXPECT_TRUE(free.stays_blocked());
  must(cudaEventRecord(event, other));
  cudaError_t const queried = cudaEventQuery(event);
  EXPECT_TRUE(queried == cudaSuccess || queried == cudaErrorNotReady) << queried;
  EXPECT_TRUE(free.stays_blocked()) << "the record, or the query, has waited for the kernel";
  launch.go();
  graph_launch.go();
  EXPECT_TRUE(launch.stays_blocked());
  EXPECT_TRUE(graph_launch.stays_blocked());
  EXPECT_EQ(cells.load(), 0);
  flag.raise();
  EXPECT_TRUE(free.succeeds_soon());
  EXPECT_TRUE(launch.succeeds_soon());
  EXPECT_TRUE(graph_launch.succeeds_soon());
  must(cudaStreamSynchronize(other));
  EXPECT_EQ(cells.load(), 2);
}
#endif

TEST_F(FreeBesideAKernel, InStreamOrderWaitsForNothingAndBlocksNothing) {
  void* memory = nullptr;
  must(cudaMallocAsync(&memory, 256, other));
  must(cudaStreamSynchronize(other));
  call_elsewhere const free([&] { return cudaFreeAsync(memory, busy); });
  EXPECT_TRUE(free.succeeds_soon());
  call_elsewhere const launch([&] { return launch_add(other, cells.data(), 1); });
  EXPECT_TRUE(launch.succeeds_soon());
}

TEST(DeviceMemory, IsLessByWhatIsAllocatedAndWhatIsMoreThanThereIsIsRefused) {
  constexpr std::size_t bytes = std::size_t{64} << 20;
  std::size_t before = 0;
  std::size_t total = 0;
  must(cudaMemGetInfo(&before, &total));
  EXPECT_LE(before, total);
  void* memory = nullptr;
  EXPECT_EQ(tried(cudaMalloc(&memory, total + 1)), cudaErrorMemoryAllocation);
  must(cudaMemGetInfo(&before, &total));  // the driver gave back what it had kept
  must(cudaMalloc(&memory, bytes));
  std::size_t after = 0;
  must(cudaMemGetInfo(&after, &total));
  EXPECT_LE(after + bytes, before);
  must(cudaFree(memory));
  must(cudaMemGetInfo(&after, &total));
  EXPECT_GT(after, before - bytes) << "it is there again, but for what the driver keeps";
}

}  // namespace
}  // namespace escrow::test
