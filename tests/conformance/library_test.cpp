// SPDX-License-Identifier: Apache-2.0
// Libraries: what is loaded, their kernels as handles, and what functions tell of themselves.
#include <unistd.h>

#include <cstdio>

#include "graph_nodes.hpp"

namespace escrow::test {
namespace {

using owned_library = owned<cudaLibrary_t, &cudaLibraryUnload>;

owned_library load() {
  owned_library result;
  must(cudaLibraryLoadData(result.out(), library_code(), nullptr, nullptr, 0, nullptr, nullptr, 0));
  return result;
}

cudaKernel_t kernel_of(cudaLibrary_t library, char const* name) {
  cudaKernel_t result = nullptr;
  must(cudaLibraryGetKernel(&result, library, name));
  return result;
}

// library_add with its arguments.
class add_of_library {
 public:
  add_of_library(cudaLibrary_t library, int* cell, int value)
      : kernel_{kernel_of(library, "library_add")}, call_{add_call(cell, value)} {}

  [[nodiscard]] cudaKernelNodeParams params() {
    cudaKernelNodeParams result = call_.params();
    result.func = reinterpret_cast<void*>(kernel_);
    return result;
  }
  [[nodiscard]] cudaError_t launch(cudaStream_t stream) {
    cudaKernelNodeParams const its = params();
    return cudaLaunchKernel(its.func, its.gridDim, its.blockDim, its.kernelParams, 0, stream);
  }

 private:
  cudaKernel_t kernel_;
  kernel_call call_;
};

class Library : public testing::Test {
 protected:
  // Launches library_add, which adds 1.
  void expect_works(cudaLibrary_t from) {
    int const before = cell.load();
    add_of_library call{from, cell.data(), 1};
    EXPECT_EQ(call.launch(stream), cudaSuccess);
    must(cudaStreamSynchronize(stream));
    EXPECT_EQ(cell.load(), before + 1);
  }

  pinned_ints cell;
  owned_stream stream = make_stream();
  owned_graph graph = make_graph();
  owned_library library = load();
};

TEST_F(Library, NamesItsKernelsAndLaunchesThemByTheirHandles) {
  unsigned count = 0;
  must(cudaLibraryGetKernelCount(&count, library));
  ASSERT_EQ(count, 2U);
  std::vector<cudaKernel_t> all(count);
  must(cudaLibraryEnumerateKernels(all.data(), count, library));
  auto* const add = kernel_of(library, "library_add");
  auto* const tiny = kernel_of(library, "library_tiny");
  EXPECT_NE(add, tiny);
  EXPECT_TRUE(all == std::vector({add, tiny}) || all == std::vector({tiny, add}));
  cudaKernel_t none = nullptr;
  EXPECT_EQ(tried(cudaLibraryGetKernel(&none, library, "no_such_kernel")), cudaErrorSymbolNotFound);
  expect_works(library);
}

TEST_F(Library, GivesKernelsToGraphsAndExecsAlsoByTheCallsForAllKindsOfNode) {
  add_of_library one{library, cell.data(), 1};
  add_of_library ten{library, cell.data(), 10};
  auto params = one.params();
  auto* const node = add_node(cudaGraphAddKernelNode, graph, nullptr, &params);
  auto* const other = add_any(graph, any_kernel(one.params()), node);
  auto any = any_kernel(ten.params());
  EXPECT_EQ(tried(cudaGraphNodeSetParams(other, &any)), cudaSuccess);
  owned_exec const exec = instantiate(graph);
  run(exec, stream);
  EXPECT_EQ(cell.load(), 11);
  params = ten.params();
  any = any_kernel(one.params());
  must(cudaGraphExecKernelNodeSetParams(exec, node, &params));
  EXPECT_EQ(tried(cudaGraphExecNodeSetParams(exec, other, &any)), cudaSuccess);
  run(exec, stream);
  EXPECT_EQ(cell.load(), 22);
}

TEST_F(Library, GivesKernelsThatCannotBeReadBackFromNodes) {
  add_of_library call{library, cell.data(), 3};
  auto* const linked = add_kernel(graph, add_call(cell.data(), 1));
  auto* const loaded = add_any(graph, any_kernel(call.params()), linked);
  cudaKernelNodeParams read{};
  EXPECT_EQ(tried(cudaGraphKernelNodeGetParams(loaded, &read)), cudaErrorInvalidDeviceFunction);
  EXPECT_EQ(tried(cudaGraphKernelNodeGetParams(linked, &read)), cudaSuccess);
  EXPECT_EQ(read.func, kernel_address(kernel_id::add));
}

TEST_F(Library, LoadedTwiceIsTwoLibraries) {
  owned_library const second = load();
  EXPECT_NE(kernel_of(library, "library_add"), kernel_of(second, "library_add"));
  library.reset();
  expect_works(second);
}

TEST_F(Library, FromAFileIsNotAskedToKeepTheCallersCode) {
  std::string const path = testing::TempDir() + "escrow_library_" + std::to_string(getpid());
  provide_library_file(path.c_str());
  auto option = cudaLibraryBinaryIsPreserved;
  int yes = 1;
  void* value = &yes;
  EXPECT_EQ(tried(cudaLibraryLoadFromFile(library.out(), path.c_str(), nullptr, nullptr, 0, &option,
                                          &value, 1)),
            cudaErrorInvalidValue);
  static_cast<void>(std::remove(path.c_str()));
}

TEST_F(Library, AndProgramNameTheirFunctionsAndTellHowManyThreadsABlockOfOneMayHave) {
  char const* name = nullptr;
  must(cudaFuncGetName(&name, reinterpret_cast<void const*>(kernel_of(library, "library_add"))));
  EXPECT_STREQ(name, "library_add");
  must(cudaFuncGetName(&name, kernel_address(kernel_id::fill)));
  // Mangled on a GPU.
  EXPECT_NE(std::string{name}.find("fill_kernel"), std::string::npos) << name;
  for (void const* const each :
       {static_cast<void const*>(kernel_address(kernel_id::tiny)),
        reinterpret_cast<void const*>(kernel_of(library, "library_tiny"))}) {
    cudaFuncAttributes attributes{};
    must(cudaFuncGetAttributes(&attributes, each));
    EXPECT_GT(attributes.maxThreadsPerBlock, 0);
  }
}

TEST(Block, OfMoreThreadsThanItCanHaveIsRefusedInALaunchAndInANode) {
  pinned_ints cell;
  owned_stream const stream = make_stream();
  owned_graph const graph = make_graph();
  auto call = add_call(cell.data(), 1);
  auto params = call.params();
  params.blockDim = dim3{4096};
  EXPECT_EQ(tried(cudaLaunchKernel(params.func, params.gridDim, params.blockDim,
                                   params.kernelParams, 0, stream)),
            cudaErrorInvalidValue);
  cudaLaunchConfig_t config{};
  config.gridDim = params.gridDim;
  config.blockDim = params.blockDim;
  config.stream = stream;
  EXPECT_EQ(tried(cudaLaunchKernelExC(&config, params.func, params.kernelParams)),
            cudaErrorInvalidValue);
  cudaGraphNode_t node = nullptr;
  EXPECT_EQ(tried(cudaGraphAddKernelNode(&node, graph, nullptr, 0, &params)),
            cudaErrorInvalidValue);
  must(cudaStreamSynchronize(stream));
  EXPECT_EQ(cell.load(), 0);
}

}  // namespace
}  // namespace escrow::test
