// Libraries: what is loaded, what its kernels are called, and that their handles serve as kernels;
// what functions tell of themselves.
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <string>
#include <vector>

#include "build_graph.hpp"
#include "graph_nodes.hpp"
#include "memory.hpp"

namespace escrow::test {
namespace {

using owned_library = owned<cudaLibrary_t, &cudaLibraryUnload>;

owned_library load() {
  owned_library result;
  must(cudaLibraryLoadData(result.out(), library_code(), nullptr, nullptr, 0, nullptr, nullptr, 0));
  return result;
}

// A file with the code; its end removes it.
class code_file {
 public:
  code_file() { provide_library_file(path_.c_str()); }
  code_file(code_file const&) = delete;
  code_file& operator=(code_file const&) = delete;
  ~code_file() { static_cast<void>(std::remove(path_.c_str())); }

  [[nodiscard]] char const* path() const { return path_.c_str(); }

 private:
  std::string path_ = testing::TempDir() + "escrow_library_" + std::to_string(getpid());
};

cudaError_t load_file(owned_library& library, char const* path) {
  return tried(
      cudaLibraryLoadFromFile(library.out(), path, nullptr, nullptr, 0, nullptr, nullptr, 0));
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
      : kernel_{kernel_of(library, "library_add")}, cell_{cell}, value_{value} {}
  add_of_library(add_of_library const&) = delete;
  add_of_library& operator=(add_of_library const&) = delete;

  [[nodiscard]] cudaError_t launch(cudaStream_t stream) {
    return cudaLaunchKernel(reinterpret_cast<void const*>(kernel_), dim3{1}, dim3{1},
                            arguments_.data(), 0, stream);
  }
  [[nodiscard]] cudaKernelNodeParams params() {
    cudaKernelNodeParams result{};
    result.func = reinterpret_cast<void*>(kernel_);
    result.gridDim = dim3{1};
    result.blockDim = dim3{1};
    result.kernelParams = arguments_.data();
    return result;
  }

 private:
  cudaKernel_t kernel_;
  int* cell_;
  int value_;
  std::array<void*, 2> arguments_{&cell_, &value_};
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

TEST_F(Library, NamesItsKernels) {
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
}

TEST_F(Library, LaunchesItsKernelsByTheirHandles) {
  expect_works(library);
}

TEST_F(Library, GivesKernelsToGraphsAndExecs) {
  add_of_library call{library, cell.data(), 3};
  auto params = call.params();
  auto* const node = add_node(cudaGraphAddKernelNode, graph, nullptr, &params);
  owned_exec const exec = instantiate(graph);
  run(exec, stream);
  EXPECT_EQ(cell.load(), 3);
  add_of_library other{library, cell.data(), 10};
  params = other.params();
  must(cudaGraphExecKernelNodeSetParams(exec, node, &params));
  run(exec, stream);
  EXPECT_EQ(cell.load(), 13);
}

TEST_F(Library, GivesKernelsToTheCallsForAllKindsOfNode) {
  add_of_library call{library, cell.data(), 1};
  auto* const node = add_any(graph, any_kernel(call.params()));
  add_of_library other{library, cell.data(), 10};
  auto p = any_kernel(other.params());
  EXPECT_EQ(tried(cudaGraphNodeSetParams(node, &p)), cudaSuccess);
  owned_exec const exec = instantiate(graph);
  run(exec, stream);
  EXPECT_EQ(cell.load(), 10);
  p = any_kernel(call.params());
  EXPECT_EQ(tried(cudaGraphExecNodeSetParams(exec, node, &p)), cudaSuccess);
  run(exec, stream);
  EXPECT_EQ(cell.load(), 11);
}

TEST_F(Library, GivesKernelsToCapturesAndToNodesThatAreSetAgain) {
  add_of_library call{library, cell.data(), 2};
  must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  EXPECT_EQ(call.launch(stream), cudaSuccess);
  must(cudaStreamEndCapture(stream, graph.out()));
  auto* const node = add_any(graph, any_kernel(call.params()));
  add_of_library other{library, cell.data(), 10};
  auto const params = other.params();
  EXPECT_EQ(tried(cudaGraphKernelNodeSetParams(node, &params)), cudaSuccess);
  run(graph, stream);
  EXPECT_EQ(cell.load(), 12);
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

TEST_F(Library, IsLoadedFromAFileAsWell) {
  {
    code_file const file;
    ASSERT_EQ(load_file(library, file.path()), cudaSuccess);
  }
  expect_works(library);
  EXPECT_EQ(load_file(library, "/nowhere/at/all"), cudaErrorFileNotFound);
}

TEST_F(Library, FromAFileCannotBeAskedToKeepTheCallersCode) {
  code_file const file;
  auto option = cudaLibraryBinaryIsPreserved;
  int yes = 1;
  void* value = &yes;
  EXPECT_EQ(tried(cudaLibraryLoadFromFile(library.out(), file.path(), nullptr, nullptr, 0, &option,
                                          &value, 1)),
            cudaErrorInvalidValue);
}

TEST_F(Library, OfWhatIsNoCodeIsRefusedOnlyWhenAKernelIsAskedFor) {
  cudaLibrary_t none = nullptr;
  ASSERT_EQ(tried(cudaLibraryLoadData(&none, "this is no code", nullptr, nullptr, 0, nullptr,
                                      nullptr, 0)),
            cudaSuccess);
  unsigned count = 0;
  EXPECT_EQ(tried(cudaLibraryGetKernelCount(&count, none)), cudaSuccess);
  cudaKernel_t kernel = nullptr;
  EXPECT_EQ(tried(cudaLibraryGetKernel(&kernel, none, "x")), cudaErrorInvalidKernelImage);
  EXPECT_EQ(tried(cudaLibraryUnload(none)), cudaSuccess);
}

TEST_F(Library, AndProgramNameTheirFunctions) {
  char const* name = nullptr;
  must(cudaFuncGetName(&name, reinterpret_cast<void const*>(kernel_of(library, "library_add"))));
  EXPECT_STREQ(name, "library_add");
  must(cudaFuncGetName(&name, kernel_address(kernel_id::fill)));
  // Mangled on a GPU.
  EXPECT_NE(std::string{name}.find("fill_kernel"), std::string::npos) << name;
}

TEST_F(Library, AndProgramTellHowManyThreadsABlockOfAFunctionMayHave) {
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
