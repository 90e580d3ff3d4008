// SPDX-License-Identifier: Apache-2.0
// Parked memory that is mapped again behind what was made of its addresses before: a texture, a
// tensor map.
#include <cuda.h>

#include "driver_function.hpp"
#include "park_world.hpp"

namespace escrow::test {
namespace {

constexpr int count = 64;

__global__ void copy_of_texture(cudaTextureObject_t texture, int* to) {
  to[threadIdx.x] = tex1Dfetch<int>(texture, static_cast<int>(threadIdx.x));
}

// Compute capability 9 and later: the hardware copies the tile.
__global__ void copy_of_tensor_map(__grid_constant__ CUtensorMap const map, int* to) {
#if __CUDA_ARCH__ >= 900
  __shared__ alignas(128) int tile[count];
  __shared__ alignas(8) std::uint64_t arrived;
  auto const in_tile = static_cast<unsigned>(__cvta_generic_to_shared(tile));
  auto const in_arrived = static_cast<unsigned>(__cvta_generic_to_shared(&arrived));
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(in_arrived) : "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(in_arrived),
                 "r"(static_cast<unsigned>(sizeof tile))
                 : "memory");
    asm volatile(
        "cp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%2}], [%3];" ::"r"(in_tile),
        "l"(&map), "r"(0), "r"(in_arrived)
        : "memory");
  }
  __syncthreads();
  unsigned is_there = 0;
  while (is_there == 0) {
    asm volatile(
        "{ .reg .pred there; mbarrier.try_wait.parity.shared::cta.b64 there, [%1], 0;"
        " selp.u32 %0, 1, 0, there; }"
        : "=r"(is_there)
        : "r"(in_arrived)
        : "memory");
  }
  to[threadIdx.x] = tile[threadIdx.x];
#endif
}

class ParkedViews : public park_world {
 protected:
  void SetUp() override {
    int major = 0;
    must(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
    has_tensor_maps = major >= 9;
    // The address of the group's first claim, which the next graph gets again.
    first.emplace(captured([&](cudaStream_t on) { address = use_scratch(scratch(), on, 1); }));
    texture = make_texture(address);
    if (has_tensor_maps) map = make_tensor_map(address);
  }
  void TearDown() override {
    must(cudaDestroyTextureObject(texture));
    first.reset();
    park_world::TearDown();
  }
  [[nodiscard]] static cudaTextureObject_t make_texture(void* memory) {
    cudaResourceDesc of{};
    of.resType = cudaResourceTypeLinear;
    of.res.linear.devPtr = memory;
    of.res.linear.desc = cudaCreateChannelDesc<int>();
    of.res.linear.sizeInBytes = count * sizeof(int);
    cudaTextureDesc how{};
    how.readMode = cudaReadModeElementType;
    cudaTextureObject_t made = 0;
    must(cudaCreateTextureObject(&made, &of, &how, nullptr));
    return made;
  }
  [[nodiscard]] static CUtensorMap make_tensor_map(void* memory) {
    auto const encode =
        driver_function<decltype(&cuTensorMapEncodeTiled)>("cuTensorMapEncodeTiled", 12000);
    cuuint64_t const size = count;
    cuuint64_t const stride = 0;  // of one dimension there is none
    cuuint32_t const box = count;
    cuuint32_t const step = 1;
    CUtensorMap made{};
    CUresult const status =
        encode(&made, CU_TENSOR_MAP_DATA_TYPE_INT32, 1, memory, &size, &stride, &box, &step,
               CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
               CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    must(status == CUDA_SUCCESS, "cuTensorMapEncodeTiled");
    return made;
  }
  /// Reads the memory by both into the outputs, and compares.
  void read(cudaStream_t on, int value) {
    copy_of_texture<<<1, count, 0, on>>>(texture, by_texture.data());
    must(launch_check(on, by_texture.data(), count, value, mismatches.data()));
    if (!has_tensor_maps) return;
    copy_of_tensor_map<<<1, count, 0, on>>>(map, by_map.data());
    must(launch_check(on, by_map.data(), count, value, mismatches.data()));
  }

  std::optional<graph> first;
  void* address = nullptr;
  bool has_tensor_maps = false;
  cudaTextureObject_t texture = 0;
  CUtensorMap map{};
  device_buffer<int> by_texture{count};
  device_buffer<int> by_map{count};
};

TEST_F(ParkedViews, ReadWhatAGraphWritesAfterwards) {
  std::vector<graph_exec> execs;
  for (int value : {5, 6}) {
    execs.emplace_back(captured([&](cudaStream_t on) {
      auto const held = scratch().claim(on, count * sizeof(int));
      ASSERT_EQ(held->data(), address);
      fill(held, on, value);
      read(on, value);
    }));
  }
  for (int i = 0; i < 20; ++i) {
    for (graph_exec& each : execs) each.launch(two);
    park_and_back();
  }
  for (graph_exec& each : execs) each.launch(two);
  sync(two);
}

TEST_F(ParkedViews, ReadContentsThatWereKept) {
  graph_exec write(captured([&](cudaStream_t on) { use_scratch(scratch(), on, 7); }));
  write.launch(two);
  for (int i = 0; i < 5; ++i) {
    group->park({.keep_contents = true});
    group->unpark();
    read(two, 7);
    sync(two);
  }
}

}  // namespace
}  // namespace escrow::test
