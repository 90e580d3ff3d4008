// Libraries: what is loaded, what its kernels are called, and that their handles serve as kernels.
#include <gtest/gtest.h>

#include <unistd.h>

#include <array>
#include <cstdio>
#include <string>
#include <vector>

#include "build_graph.hpp"
#include "graph_nodes.hpp"
#include "handles.hpp"
#include "memory.hpp"

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
      : kernel_{kernel_of(library, "library_add")}, cell_{cell}, value_{value} {}
  add_of_library(add_of_library const&) = delete;
  add_of_library& operator=(add_of_library const&) = delete;

  [[nodiscard]] cudaKernel_t handle() const { return kernel_; }
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
  pinned_ints cell;
  owned_stream stream = make_stream();
};

TEST_F(Library, NamesItsKernels) {
  owned_library const library = load();
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
  owned_library const library = load();
  add_of_library call{library, cell.data(), 3};
  EXPECT_EQ(call.launch(stream), cudaSuccess);
  must(cudaStreamSynchronize(stream));
  EXPECT_EQ(cell.load(), 3);
}

TEST_F(Library, GivesKernelsToGraphsAndExecs) {
  owned_library const library = load();
  add_of_library call{library, cell.data(), 3};
  owned_graph const graph = make_graph();
  cudaGraphNode_t node = nullptr;
  auto params = call.params();
  must(cudaGraphAddKernelNode(&node, graph, nullptr, 0, &params));
  owned_exec const exec = instantiate(graph);
  run(exec, stream);
  EXPECT_EQ(cell.load(), 3);
  add_of_library other{library, cell.data(), 10};
  params = other.params();
  must(cudaGraphExecKernelNodeSetParams(exec, node, &params));
  run(exec, stream);
  EXPECT_EQ(cell.load(), 13);
}

// The same in the form that the calls for all kinds of node take.
cudaGraphNodeParams as_any(cudaKernelNodeParams const& kernel) {
  auto result = params_of(cudaGraphNodeTypeKernel);
  result.kernel.func = kernel.func;
  result.kernel.gridDim = kernel.gridDim;
  result.kernel.blockDim = kernel.blockDim;
  result.kernel.kernelParams = kernel.kernelParams;
  return result;
}

TEST_F(Library, GivesKernelsToTheCallsForAllKindsOfNode) {
  owned_library const library = load();
  add_of_library call{library, cell.data(), 1};
  owned_graph const graph = make_graph();
  auto* const node = add_any(graph, as_any(call.params()));
  add_of_library other{library, cell.data(), 10};
  auto p = as_any(other.params());
  EXPECT_EQ(tried(cudaGraphNodeSetParams(node, &p)), cudaSuccess);
  owned_exec const exec = instantiate(graph);
  run(exec, stream);
  EXPECT_EQ(cell.load(), 10);
  p = as_any(call.params());
  EXPECT_EQ(tried(cudaGraphExecNodeSetParams(exec, node, &p)), cudaSuccess);
  run(exec, stream);
  EXPECT_EQ(cell.load(), 11);
}

TEST_F(Library, GivesKernelsToCapturesAndToNodesThatAreSetAgain) {
  owned_library const library = load();
  add_of_library call{library, cell.data(), 2};
  must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  EXPECT_EQ(call.launch(stream), cudaSuccess);
  owned_graph graph;
  must(cudaStreamEndCapture(stream, graph.out()));
  auto* const node = add_any(graph, as_any(call.params()));
  add_of_library other{library, cell.data(), 10};
  auto const params = other.params();
  EXPECT_EQ(tried(cudaGraphKernelNodeSetParams(node, &params)), cudaSuccess);
  run(graph, stream);
  EXPECT_EQ(cell.load(), 12);
}

TEST_F(Library, GivesKernelsThatCannotBeReadBackFromNodes) {
  owned_library const library = load();
  add_of_library call{library, cell.data(), 3};
  owned_graph const graph = make_graph();
  auto* const linked = add_kernel(graph, add_call(cell.data(), 1));
  auto* const loaded = add_any(graph, as_any(call.params()), linked);
  cudaKernelNodeParams read{};
  EXPECT_EQ(tried(cudaGraphKernelNodeGetParams(loaded, &read)), cudaErrorInvalidDeviceFunction);
  EXPECT_EQ(tried(cudaGraphKernelNodeGetParams(linked, &read)), cudaSuccess);
  EXPECT_EQ(read.func, kernel_address(kernel_id::add));
}

TEST_F(Library, LoadedTwiceIsTwoLibraries) {
  owned_library first = load();
  owned_library const second = load();
  EXPECT_NE(kernel_of(first, "library_add"), kernel_of(second, "library_add"));
  first.reset();
  add_of_library call{second, cell.data(), 2};
  EXPECT_EQ(call.launch(stream), cudaSuccess);
  must(cudaStreamSynchronize(stream));
  EXPECT_EQ(cell.load(), 2);
}

TEST_F(Library, IsLoadedFromAFileAsWell) {
  std::string const path = testing::TempDir() + "escrow_library_" + std::to_string(getpid());
  provide_library_file(path.c_str());
  owned_library library;
  ASSERT_EQ(cudaLibraryLoadFromFile(library.out(), path.c_str(), nullptr, nullptr, 0, nullptr,
                                    nullptr, 0),
            cudaSuccess);
  static_cast<void>(std::remove(path.c_str()));
  add_of_library call{library, cell.data(), 4};
  EXPECT_EQ(call.launch(stream), cudaSuccess);
  must(cudaStreamSynchronize(stream));
  EXPECT_EQ(cell.load(), 4);
}

TEST_F(Library, FromAFileThatIsNotThereIsRefused) {
  owned_library library;
  EXPECT_EQ(tried(cudaLibraryLoadFromFile(library.out(), "/nowhere/at/all", nullptr, nullptr, 0,
                                          nullptr, nullptr, 0)),
            cudaErrorFileNotFound);
}

TEST_F(Library, FromAFileCannotBeAskedToKeepTheCallersCode) {
  std::string const path = testing::TempDir() + "escrow_kept_" + std::to_string(getpid());
  provide_library_file(path.c_str());
  owned_library library;
  auto option = cudaLibraryBinaryIsPreserved;
  int yes = 1;
  void* value = &yes;
  EXPECT_EQ(tried(cudaLibraryLoadFromFile(library.out(), path.c_str(), nullptr, nullptr, 0, &option,
                                          &value, 1)),
            cudaErrorInvalidValue);
  static_cast<void>(std::remove(path.c_str()));
}

TEST_F(Library, OfWhatIsNoCodeIsRefusedOnlyWhenAKernelIsAskedFor) {
  cudaLibrary_t library = nullptr;
  ASSERT_EQ(tried(cudaLibraryLoadData(&library, "this is no code", nullptr, nullptr, 0, nullptr,
                                      nullptr, 0)),
            cudaSuccess);
  unsigned count = 0;
  EXPECT_EQ(tried(cudaLibraryGetKernelCount(&count, library)), cudaSuccess);
  cudaKernel_t none = nullptr;
  EXPECT_EQ(tried(cudaLibraryGetKernel(&none, library, "x")), cudaErrorInvalidKernelImage);
  EXPECT_EQ(tried(cudaLibraryUnload(library)), cudaSuccess);
}

TEST(Function, OfALibraryHasTheNameItWasFoundBy) {
  owned_library const library = load();
  char const* name = nullptr;
  must(cudaFuncGetName(&name, reinterpret_cast<void const*>(kernel_of(library, "library_add"))));
  EXPECT_STREQ(name, "library_add");
}

TEST(Function, OfTheProgramHasAName) {
  char const* name = nullptr;
  must(cudaFuncGetName(&name, kernel_address(kernel_id::fill)));
  // Mangled on a GPU.
  EXPECT_NE(std::string{name}.find("fill_kernel"), std::string::npos) << name;
}

TEST(Function, TellsHowManyThreadsABlockMayHave) {
  owned_library const library = load();
  cudaFuncAttributes attributes{};
  must(cudaFuncGetAttributes(&attributes, kernel_address(kernel_id::tiny)));
  EXPECT_GT(attributes.maxThreadsPerBlock, 0);
  attributes = {};
  must(cudaFuncGetAttributes(&attributes,
                             reinterpret_cast<void const*>(kernel_of(library, "library_tiny"))));
  EXPECT_GT(attributes.maxThreadsPerBlock, 0);
}

}  // namespace
}  // namespace escrow::test
