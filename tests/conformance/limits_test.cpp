// SPDX-License-Identifier: Apache-2.0
// What CUDA refuses at the call, because it ends beyond its memory or is larger than the device.
#include <initializer_list>
#include <vector>

#include "graph_nodes.hpp"

namespace escrow::test {
namespace {

class Limits : public testing::Test {
 protected:
  static constexpr std::size_t ints = 64, bytes = ints * sizeof(int);

  cudaError_t try_launch(dim3 grid, dim3 block, std::size_t shared = 0) {
    kernel_call call = add_call(cells.data(), 1);
    cudaKernelNodeParams const its = call.params();
    return tried(cudaLaunchKernel(its.func, grid, block, its.kernelParams, shared, stream));
  }

  std::vector<int> host = std::vector<int>(4 * ints);
  device_ints const device{ints};
  pinned_ints cells{4};
  owned_stream stream = make_stream();
};

TEST_F(Limits, OfAnAllocationAreThoseOfCopiesAndFills) {
  for (std::size_t const size : {bytes, bytes + 1, 4 * bytes}) {
    cudaError_t const expected = size == bytes ? cudaSuccess : cudaErrorInvalidValue;
    EXPECT_EQ(tried(cudaMemsetAsync(device.data(), 0, size, stream)), expected);
    EXPECT_EQ(
        tried(cudaMemcpyAsync(device.data(), host.data(), size, cudaMemcpyHostToDevice, stream)),
        expected);
    EXPECT_EQ(
        tried(cudaMemcpyAsync(host.data(), device.data(), size, cudaMemcpyDeviceToHost, stream)),
        expected);
    cudaMemsetParams params{};
    params.dst = device.data();
    params.elementSize = 1;
    params.width = size;
    params.height = 1;
    owned_graph const graph = make_graph();
    cudaGraphNode_t node = nullptr;
    EXPECT_EQ(tried(cudaGraphAddMemsetNode(&node, graph, nullptr, 0, &params)), expected);
  }
  sync();
}

TEST_F(Limits, OfAnAllocationInACapture) {
  test::capture open(stream, cudaStreamCaptureModeThreadLocal);
  EXPECT_EQ(
      tried(cudaMemcpyAsync(device.data(), host.data(), 2 * bytes, cudaMemcpyHostToDevice, stream)),
      cudaErrorInvalidValue);
  EXPECT_EQ(tried(cudaMemsetAsync(device.data(), 0, 2 * bytes, stream)), cudaSuccess);
  ASSERT_EQ(open.end(), cudaSuccess) << "neither invalidates the capture";
  cudaGraphExec_t exec = nullptr;
  EXPECT_EQ(tried(cudaGraphInstantiate(&exec, open.graph(), 0)), cudaErrorInvalidValue);
}

TEST_F(Limits, OfGridsBlocksAndSharedMemory) {
  EXPECT_EQ(try_launch({1, 65535}, 1), cudaSuccess);
  EXPECT_EQ(try_launch({1, 1, 65535}, 1), cudaSuccess);
  EXPECT_EQ(try_launch(1, {1, 1, 64}), cudaSuccess);
  EXPECT_EQ(try_launch(1, 1, 48 * 1024), cudaSuccess);
  for (dim3 const grid : {dim3(1, 65536), dim3(1, 1, 65536), dim3(0x80000000U), dim3(0)}) {
    EXPECT_EQ(try_launch(grid, 1), cudaErrorInvalidValue) << grid.x << ' ' << grid.y;
  }
  for (dim3 const block : {dim3(1025), dim3(1, 1, 65), dim3(0)}) {
    EXPECT_EQ(try_launch(1, block), cudaErrorInvalidValue) << block.x << ' ' << block.z;
  }
  EXPECT_EQ(try_launch(1, 1, 48 * 1024 + 1), cudaErrorInvalidValue);
  sync();
}

TEST_F(Limits, OfALaunchInvalidateACapture) {
  for (bool const is_shared : {false, true}) {
    test::capture open(stream, cudaStreamCaptureModeThreadLocal);
    EXPECT_EQ(is_shared ? try_launch(1, 1, 1 << 20) : try_launch({1, 65536}, 1),
              cudaErrorInvalidValue);
    EXPECT_EQ(open.end(), cudaErrorStreamCaptureInvalidated);
  }
}

TEST_F(Limits, OfClusters) {
  if (compute_capability() < 9) GTEST_SKIP() << "the device has no clusters";
  kernel_call call = add_call(cells.data(), 1);
  for (auto const& [size, blocks] : {std::pair{2U, 2U}, {2U, 3U}, {8U, 8U}, {8U, 9U}, {16U, 16U}}) {
    cudaLaunchAttribute cluster{};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {size, 1, 1};
    bool const fits = size <= 8 && blocks % size == 0;
    EXPECT_EQ(tried(call.launch(stream, blocks, {cluster})),
              fits ? cudaSuccess : cudaErrorInvalidClusterSize)
        << size << ' ' << blocks;
  }
  sync();
}

}  // namespace
}  // namespace escrow::test
