// SPDX-License-Identifier: Apache-2.0
// What the driver tells of a kernel's parameters, of the arguments in a node, and of an address.
#include <cuda.h>

#include <cstddef>
#include <cstring>
#include <vector>

#include "driver_function.hpp"
#include "graph_nodes.hpp"

namespace escrow::test {
namespace {

struct parameter {
  std::size_t offset = 0;
  std::size_t bytes = 0;
};

CUDA_KERNEL_NODE_PARAMS params_of_node(cudaGraphNode_t node) {
  static auto const get = driver_function<CUresult (*)(CUgraphNode, CUDA_KERNEL_NODE_PARAMS*)>(
      "cuGraphKernelNodeGetParams", 12000);
  CUDA_KERNEL_NODE_PARAMS params{};
  EXPECT_EQ(get(node, &params), CUDA_SUCCESS);
  return params;
}

/// In one of these ways: a node has a function or a kernel.
std::vector<parameter> parameters_of(CUDA_KERNEL_NODE_PARAMS const& params) {
  static auto const of_function =
      driver_function<CUresult (*)(CUfunction, std::size_t, std::size_t*, std::size_t*)>(
          "cuFuncGetParamInfo", 12040);
  static auto const of_kernel =
      driver_function<CUresult (*)(CUkernel, std::size_t, std::size_t*, std::size_t*)>(
          "cuKernelGetParamInfo", 12040);
  std::vector<parameter> all;
  while (true) {
    parameter next;
    CUresult const status = params.func != nullptr
                                ? of_function(params.func, all.size(), &next.offset, &next.bytes)
                                : of_kernel(params.kern, all.size(), &next.offset, &next.bytes);
    if (status == CUDA_ERROR_INVALID_VALUE) return all;  // behind the last
    EXPECT_EQ(status, CUDA_SUCCESS);
    if (status != CUDA_SUCCESS) return all;
    all.push_back(next);
  }
}

std::string name_of(CUDA_KERNEL_NODE_PARAMS const& params) {
  static auto const of_function =
      driver_function<CUresult (*)(char const**, CUfunction)>("cuFuncGetName", 12030);
  static auto const of_kernel =
      driver_function<CUresult (*)(char const**, CUkernel)>("cuKernelGetName", 12030);
  char const* name = nullptr;
  EXPECT_EQ(
      params.func != nullptr ? of_function(&name, params.func) : of_kernel(&name, params.kern),
      CUDA_SUCCESS);
  return name == nullptr ? "" : name;
}

TEST(Addresses, OfANodeAreInItsArgumentsWhosePlacesTheDriverTells) {
  device_ints cell(4);
  owned_graph const graph = make_graph();
  kernel_call call = check_call(cell.data(), 4, 7, cell.data() + 1);
  cudaKernelNodeParams const check = call.params();
  CUDA_KERNEL_NODE_PARAMS const read =
      params_of_node(add_node(cudaGraphAddKernelNode, graph.get(), nullptr, &check));
  EXPECT_NE(name_of(read).find("check_kernel"), std::string::npos) << name_of(read);
  std::vector<parameter> const its = parameters_of(read);
  ASSERT_EQ(its.size(), 4U);
  std::size_t const offsets[] = {0, 8, 16, 24};
  std::size_t const sizes[] = {8, 8, 4, 8};
  for (std::size_t i = 0; i < its.size(); ++i) {
    EXPECT_EQ(its[i].offset, offsets[i]);
    EXPECT_EQ(its[i].bytes, sizes[i]);
  }
  ASSERT_NE(read.kernelParams, nullptr);
  int* first = nullptr;
  int* last = nullptr;
  std::memcpy(&first, read.kernelParams[0], sizeof(first));
  std::memcpy(&last, read.kernelParams[3], sizeof(last));
  EXPECT_EQ(first, cell.data());
  EXPECT_EQ(last, cell.data() + 1);
}

struct answer {
  unsigned type = 77;
  CUmemoryPool pool = nullptr;
};
answer ask(void const* address) {
  static auto const get =
      driver_function<CUresult (*)(unsigned, CUpointer_attribute*, void**, CUdeviceptr)>(
          "cuPointerGetAttributes", 7000);
  answer its;
  CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                 CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE};
  void* answers[] = {&its.type, &its.pool};
  EXPECT_EQ(get(2, which, answers, reinterpret_cast<CUdeviceptr>(address)), CUDA_SUCCESS);
  return its;
}

TEST(Addresses, AreOfTheDeviceOfTheHostOrOfNoMemory) {
  device_ints const device(4);
  pinned_ints const pinned(4);
  EXPECT_EQ(ask(device.data()).type, unsigned{CU_MEMORYTYPE_DEVICE});
  EXPECT_EQ(ask(device.data() + 1).type, unsigned{CU_MEMORYTYPE_DEVICE});
  EXPECT_EQ(ask(pinned.data()).type, unsigned{CU_MEMORYTYPE_HOST});
  EXPECT_EQ(ask(device.data()).pool, nullptr);
  int on_stack = 0;
  EXPECT_EQ(ask(&on_stack).type, 0U);
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
}

TEST(Addresses, InACaptureAreToldAndHarmNothing) {
  owned_stream const stream = make_stream();
  device_ints const device(4);
  capture open{stream, cudaStreamCaptureModeGlobal};
  must(launch_tiny(stream));
  EXPECT_EQ(ask(device.data()).type, unsigned{CU_MEMORYTYPE_DEVICE});
  must(open.end());
}

TEST(Addresses, OfAPoolsMemoryAreOfThePoolAndFreedOnesOfItOrOfNone) {
  owned_stream const stream = make_stream();
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location = {.type = cudaMemLocationTypeDevice, .id = 0};
  cudaMemPool_t pool = nullptr;
  must(cudaMemPoolCreate(&pool, &properties));
  void* memory = nullptr;
  must(cudaMallocFromPoolAsync(&memory, 4096, pool, stream));
  must(cudaStreamSynchronize(stream));
  EXPECT_EQ(ask(memory).type, unsigned{CU_MEMORYTYPE_DEVICE});
  EXPECT_EQ(ask(memory).pool, pool);
  must(cudaFreeAsync(memory, stream));
  must(cudaStreamSynchronize(stream));
  answer const freed = ask(memory);
  EXPECT_TRUE(freed.type == 0 || freed.pool == pool) << freed.type << " " << freed.pool;
  must(cudaMemPoolDestroy(pool));
}

}  // namespace
}  // namespace escrow::test
