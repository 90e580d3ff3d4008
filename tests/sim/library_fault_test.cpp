// Kernels that run after their library was unloaded: seen for what they are, and counted.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <ostream>
#include <string>

#include "build_graph.hpp"
#include "fresh_runtime.hpp"
#include "handles.hpp"
#include "memory.hpp"

namespace escrow::test {
namespace {

// Runs until the integer its argument points to is not zero.
bool wait_kernel(void** args) {
  // Acquire: pairs with the release of whoever raises the flag.
  return std::atomic_ref<int>{**static_cast<int**>(args[0])}.load(std::memory_order_acquire) != 0;
}

class LibraryFault : public fresh_runtime {
 protected:
  LibraryFault() { image.add("wait", &wait_kernel, {sizeof(int*)}); }

  cudaLibrary_t load() {
    cudaLibrary_t result = nullptr;
    must(cudaLibraryLoadData(&result, image.code(), nullptr, nullptr, 0, nullptr, nullptr, 0));
    return result;
  }
  // The library's kernel, which ends at once if `flag` is raised.
  cudaKernelNodeParams params(cudaLibrary_t library, int* flag) {
    cudaKernel_t kernel = nullptr;
    must(cudaLibraryGetKernel(&kernel, library, "wait"));
    flag_ = flag;
    cudaKernelNodeParams result{};
    result.func = reinterpret_cast<void*>(kernel);
    result.gridDim = dim3{1};
    result.blockDim = dim3{1};
    result.kernelParams = arguments_.data();
    return result;
  }
  void expect_fault(cudaStream_t stream) {
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorLaunchFailure);
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorLaunchFailure);
    EXPECT_EQ(sim::unloaded_kernel_launches(), 1U);
  }

  sim::library_image image;

 private:
  int* flag_ = nullptr;
  std::array<void*, 1> arguments_{&flag_};
};

TEST_F(LibraryFault, ALaunchAfterTheUnloadFailsTheDeviceForGood) {
  int raised = 1;
  owned_stream const stream = make_stream();
  auto* const library = load();
  auto const call = params(library, &raised);
  must(cudaLibraryUnload(library));
  EXPECT_EQ(sim::unloaded_kernel_launches(), 0U);
  must(cudaLaunchKernel(call.func, call.gridDim, call.blockDim, call.kernelParams, 0, stream));
  expect_fault(stream);
}

TEST_F(LibraryFault, SoDoesTheLaunchOfAnExecThatHasTheKernel) {
  int raised = 1;
  owned_stream const stream = make_stream();
  owned_graph const graph = make_graph();
  auto* const library = load();
  auto const call = params(library, &raised);
  cudaGraphNode_t node = nullptr;
  must(cudaGraphAddKernelNode(&node, graph, nullptr, 0, &call));
  owned_exec const exec = instantiate(graph);
  must(cudaGraphLaunch(exec, stream));
  must(cudaStreamSynchronize(stream));
  must(cudaLibraryUnload(library));
  must(cudaGraphLaunch(exec, stream));
  expect_fault(stream);
}

TEST_F(LibraryFault, SoDoesAnUnloadWhileTheKernelRuns) {
  pinned_ints flag;
  owned_stream const stream = make_stream();
  auto* const library = load();
  auto const call = params(library, flag.data());
  must(cudaLaunchKernel(call.func, call.gridDim, call.blockDim, call.kernelParams, 0, stream));
  must(cudaLibraryUnload(library));
  expect_fault(stream);
}

TEST_F(LibraryFault, SoDoesALaunchInASteppedRun) {
  sim::reset({.stepped = true});
  int raised = 1;
  owned_stream const stream = make_stream();
  auto* const library = load();
  auto const call = params(library, &raised);
  must(cudaLaunchKernel(call.func, call.gridDim, call.blockDim, call.kernelParams, 0, stream));
  must(cudaLaunchKernel(call.func, call.gridDim, call.blockDim, call.kernelParams, 0, stream));
  must(cudaLibraryUnload(library));
  expect_fault(stream);
  EXPECT_EQ(sim::alive().pending_ops, 0U);
}

TEST_F(LibraryFault, AnUnloadBehindTheLastLaunchIsNone) {
  int raised = 1;
  owned_stream const stream = make_stream();
  auto* const library = load();
  auto const call = params(library, &raised);
  must(cudaLaunchKernel(call.func, call.gridDim, call.blockDim, call.kernelParams, 0, stream));
  must(cudaStreamSynchronize(stream));
  must(cudaLibraryUnload(library));
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(sim::unloaded_kernel_launches(), 0U);
}

TEST_F(LibraryFault, LibrariesAreCountedUntilTheyAreUnloaded) {
  auto* const first = load();
  auto* const second = load();
  EXPECT_EQ(sim::alive().libraries, 2U);
  must(cudaLibraryUnload(first));
  EXPECT_EQ(sim::alive().libraries, 1U);
  EXPECT_EQ(cudaLibraryUnload(first), cudaErrorInvalidValue);
  must(cudaLibraryUnload(second));
  EXPECT_EQ(sim::alive(), sim::counts{});
  load();
  sim::reset();
  EXPECT_EQ(sim::alive(), sim::counts{});
}

TEST_F(LibraryFault, ALibraryOutlivesItsImage) {
  cudaLibrary_t library = nullptr;
  {
    sim::library_image short_lived;
    short_lived.add("wait", &wait_kernel, {sizeof(int*)});
    must(cudaLibraryLoadData(&library, short_lived.code(), nullptr, nullptr, 0, nullptr, nullptr,
                             0));
  }
  int raised = 1;
  owned_stream const stream = make_stream();
  auto const call = params(library, &raised);
  must(cudaLaunchKernel(call.func, call.gridDim, call.blockDim, call.kernelParams, 0, stream));
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  must(cudaLibraryUnload(library));
}

struct named_call {
  char const* name;
  cudaError_t (*make)(cudaLibrary_t);

  friend void PrintTo(named_call const& call, std::ostream* out) { *out << call.name; }
};

cudaError_t load_and_unload(cudaLibrary_t) {
  cudaLibrary_t made = nullptr;
  auto const status =
      cudaLibraryLoadData(&made, library_code(), nullptr, nullptr, 0, nullptr, nullptr, 0);
  return status == cudaSuccess ? cudaLibraryUnload(made) : status;
}

cudaError_t load_file_and_unload(cudaLibrary_t) {
  provide_library_file("a_file");
  cudaLibrary_t made = nullptr;
  auto const status =
      cudaLibraryLoadFromFile(&made, "a_file", nullptr, nullptr, 0, nullptr, nullptr, 0);
  return status == cudaSuccess ? cudaLibraryUnload(made) : status;
}

constexpr std::array calls{
    named_call{"cudaLibraryLoadData", &load_and_unload},
    named_call{"cudaLibraryLoadFromFile", &load_file_and_unload},
    named_call{"cudaLibraryGetKernel",
               [](cudaLibrary_t library) {
                 cudaKernel_t kernel = nullptr;
                 return cudaLibraryGetKernel(&kernel, library, "wait");
               }},
    named_call{"cudaLibraryGetKernelCount",
               [](cudaLibrary_t library) {
                 unsigned count = 0;
                 return cudaLibraryGetKernelCount(&count, library);
               }},
    named_call{"cudaLibraryEnumerateKernels",
               [](cudaLibrary_t library) {
                 cudaKernel_t kernel = nullptr;
                 return cudaLibraryEnumerateKernels(&kernel, 1, library);
               }},
    named_call{"cudaLibraryUnload",
               [](cudaLibrary_t library) { return cudaLibraryUnload(library); }},
    named_call{"cudaFuncGetName",
               [](cudaLibrary_t) {
                 char const* name = nullptr;
                 return cudaFuncGetName(&name, kernel_address(kernel_id::tiny));
               }},
    named_call{"cudaFuncGetAttributes",
               [](cudaLibrary_t) {
                 cudaFuncAttributes attributes{};
                 return cudaFuncGetAttributes(&attributes, kernel_address(kernel_id::tiny));
               }},
};

class FailedLibraryCall : public LibraryFault, public testing::WithParamInterface<named_call> {};

TEST_P(FailedLibraryCall, ReturnsTheErrorAndWorksAfterThat) {
  auto* const library = load();
  sim::fail_call(GetParam().name, cudaErrorUnknown);
  EXPECT_EQ(GetParam().make(library), cudaErrorUnknown);
  EXPECT_EQ(sim::alive().libraries, 1U);
  EXPECT_EQ(GetParam().make(library), cudaSuccess);
}

INSTANTIATE_TEST_SUITE_P(Libraries, FailedLibraryCall, testing::ValuesIn(calls),
                         [](auto const& one) { return std::string{one.param.name}; });

}  // namespace
}  // namespace escrow::test
