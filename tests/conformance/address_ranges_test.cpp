// SPDX-License-Identifier: Apache-2.0
// The driver's virtual memory management: memory that comes and goes at addresses that stay.
#include <cuda.h>

#include "call_elsewhere.hpp"
#include "driver_function.hpp"
#include "graph_nodes.hpp"

namespace escrow::test {
namespace {

constexpr std::size_t mebibyte = std::size_t{1} << 20;
constexpr std::size_t size = 64 * mebibyte;

// As core's tests of the driver: by the version of the signature that is called.
template <class Function>
Function of(char const* name) {
  return driver_function<Function>(name, 10020);
}

class AddressRange : public testing::Test {
 protected:
  AddressRange() { must(reserve(&begin, size, 0, 0, 0) == CUDA_SUCCESS, "cuMemAddressReserve"); }
  ~AddressRange() override { EXPECT_EQ(free(begin, size), CUDA_SUCCESS); }

  [[nodiscard]] static CUmemAllocationProp properties() {
    CUmemAllocationProp its{};
    its.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    its.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
    return its;
  }
  /// Creates memory and maps it; its handle is released at once: it goes when it is unmapped.
  [[nodiscard]] CUresult map_memory(std::size_t offset, std::size_t bytes, bool is_usable = true) {
    CUmemGenericAllocationHandle handle = 0;
    CUmemAllocationProp const its = properties();
    CUmemAccessDesc const access{.location = its.location,
                                 .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    if (CUresult const result = create(&handle, bytes, &its, 0); result != CUDA_SUCCESS) {
      return result;
    }
    CUresult result = map(begin + offset, bytes, 0, handle, 0);
    if (result == CUDA_SUCCESS && is_usable) {
      result = set_access(begin + offset, bytes, &access, 1);
    }
    EXPECT_EQ(release(handle), CUDA_SUCCESS);
    return result;
  }
  [[nodiscard]] int* at(std::size_t offset) const { return reinterpret_cast<int*>(begin + offset); }

  decltype(&cuMemAddressReserve) reserve = of<decltype(reserve)>("cuMemAddressReserve");
  decltype(&cuMemAddressFree) free = of<decltype(free)>("cuMemAddressFree");
  decltype(&cuMemCreate) create = of<decltype(create)>("cuMemCreate");
  decltype(&cuMemRelease) release = of<decltype(release)>("cuMemRelease");
  decltype(&cuMemMap) map = of<decltype(map)>("cuMemMap");
  decltype(&cuMemUnmap) unmap = of<decltype(unmap)>("cuMemUnmap");
  decltype(&cuMemSetAccess) set_access = of<decltype(set_access)>("cuMemSetAccess");
  decltype(&cuMemGetAllocationGranularity) granularity =
      of<decltype(granularity)>("cuMemGetAllocationGranularity");
  CUdeviceptr begin = 0;
  owned_stream stream = make_stream();
};

TEST_F(AddressRange, HasMemoryWhereItIsMapped) {
  std::size_t step = 0;
  CUmemAllocationProp const its = properties();
  EXPECT_EQ(granularity(&step, &its, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED), CUDA_SUCCESS);
  EXPECT_EQ(step, 2 * mebibyte);
  ASSERT_EQ(map_memory(0, 2 * mebibyte), CUDA_SUCCESS);
  ASSERT_EQ(map_memory(2 * mebibyte, 4 * mebibyte), CUDA_SUCCESS);
  std::size_t const last = 6 * mebibyte / sizeof(int);
  must(launch_fill(stream, at(0), last, 7));  // over both pieces
  pinned_ints wrong;
  must(launch_check(stream, at(0), last, 7, wrong.data()));
  must(cudaStreamSynchronize(stream));
  EXPECT_EQ(wrong.load(), 0);
  cudaPointerAttributes attributes{};
  must(cudaPointerGetAttributes(&attributes, at(3 * mebibyte)));
  EXPECT_EQ(attributes.type, cudaMemoryTypeDevice);
  EXPECT_EQ(attributes.device, 0);
  EXPECT_EQ(unmap(begin, 2 * mebibyte), CUDA_SUCCESS);
  EXPECT_EQ(unmap(begin + 2 * mebibyte, 4 * mebibyte), CUDA_SUCCESS);
}

TEST_F(AddressRange, RefusesWhatDoesNotFit) {
  EXPECT_EQ(map_memory(0, mebibyte), CUDA_ERROR_INVALID_VALUE) << "no multiple of the step";
  EXPECT_EQ(map_memory(mebibyte, 2 * mebibyte, false), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(map_memory(size, 2 * mebibyte, false), CUDA_ERROR_INVALID_VALUE) << "behind the end";
  ASSERT_EQ(map_memory(0, 4 * mebibyte), CUDA_SUCCESS);
  EXPECT_EQ(map_memory(2 * mebibyte, 4 * mebibyte, false), CUDA_ERROR_INVALID_VALUE) << "overlaps";
  EXPECT_EQ(unmap(begin, 4 * mebibyte), CUDA_SUCCESS);
  EXPECT_EQ(unmap(begin, 4 * mebibyte), CUDA_SUCCESS) << "it is unmapped already";
}

TEST_F(AddressRange, MapsAndUnmapsBesideRunningWorkInCapturesOfAllModes) {
  pinned_flag flag;
  pinned_ints cell;
  must(launch_add(stream, cell.data(), 0));  // it is loaded
  must(cudaStreamSynchronize(stream));
  owned_stream const busy = make_stream();
  must(launch_wait_flag(busy, flag.get()));
  for (auto const mode : {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal,
                          cudaStreamCaptureModeRelaxed}) {
    capture open{stream, mode};
    for (bool const is_elsewhere : {false, true}) {
      auto const both = [&] {
        return map_memory(0, 2 * mebibyte) == CUDA_SUCCESS &&
               unmap(begin, 2 * mebibyte) == CUDA_SUCCESS;
      };
      bool are_right = false;
      if (is_elsewhere) {
        std::thread([&] { are_right = both(); }).join();
      } else {
        are_right = both();
      }
      EXPECT_TRUE(are_right);
    }
    EXPECT_EQ(open.end(), cudaSuccess);
  }
  must(launch_add(stream, cell.data(), 1));
  must(cudaStreamSynchronize(stream));
  EXPECT_EQ(cell.load(), 1) << "launches go on meanwhile";
  flag.raise();
  must(cudaStreamSynchronize(busy));
}

TEST_F(AddressRange, ExecsRunOnWithOtherMemoryAtTheirAddresses) {
  ASSERT_EQ(map_memory(0, 2 * mebibyte), CUDA_SUCCESS);
  pinned_ints wrong;
  capture open{stream, cudaStreamCaptureModeRelaxed};
  must(launch_fill(stream, at(0), 64, 3));
  must(launch_check(stream, at(0), 64, 3, wrong.data()));
  must(open.end());
  owned_exec const exec = instantiate(open.graph().get());
  for (int i = 0; i < 3; ++i) {
    must(cudaGraphLaunch(exec, stream));
    must(cudaStreamSynchronize(stream));
    EXPECT_EQ(unmap(begin, 2 * mebibyte), CUDA_SUCCESS);
    ASSERT_EQ(map_memory(0, 2 * mebibyte), CUDA_SUCCESS);
  }
  EXPECT_EQ(wrong.load(), 0);
  EXPECT_EQ(unmap(begin, 2 * mebibyte), CUDA_SUCCESS);
}

TEST_F(AddressRange, GivesBackItsMemoryWhenItIsUnmapped) {
  std::size_t before = 0;
  std::size_t now = 0;
  std::size_t total = 0;
  must(cudaMemGetInfo(&before, &total));
  ASSERT_EQ(map_memory(0, size), CUDA_SUCCESS);
  must(cudaMemGetInfo(&now, &total));
  EXPECT_EQ(before - now, size);
  EXPECT_EQ(unmap(begin, size), CUDA_SUCCESS);
  must(cudaMemGetInfo(&now, &total));
  EXPECT_EQ(before, now);
}

}  // namespace
}  // namespace escrow::test
