// SPDX-License-Identifier: Apache-2.0
// Reads nodes' parameters; the driver tells where a kernel's arguments are.
#include "node_words.hpp"

#include <cuda.h>
#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "escrow/core/error.hpp"
#include "escrow/internal/device.hpp"

namespace escrow::inline v0_2 {

// The runtime knows no function of another module (measured: cudaErrorInvalidDeviceFunction).
struct node_words::driver_functions {
  CUresult(CUDAAPI* params)(CUgraphNode, CUDA_KERNEL_NODE_PARAMS*) =
      find_in_driver<decltype(params)>("cuGraphKernelNodeGetParams", 12000);
  CUresult(CUDAAPI* function_name)(char const**, CUfunction) =
      find_in_driver<decltype(function_name)>("cuFuncGetName", 12030);
  CUresult(CUDAAPI* kernel_name)(char const**, CUkernel) =
      find_in_driver<decltype(kernel_name)>("cuKernelGetName", 12030);
  CUresult(CUDAAPI* of_function)(CUfunction, std::size_t, std::size_t*, std::size_t*) =
      find_in_driver<decltype(of_function)>("cuFuncGetParamInfo", 12040);
  CUresult(CUDAAPI* of_kernel)(CUkernel, std::size_t, std::size_t*, std::size_t*) =
      find_in_driver<decltype(of_kernel)>("cuKernelGetParamInfo", 12040);
};

node_words::driver_functions const& node_words::driver() {
  static driver_functions const found;
  return found;
}

namespace {

// As in the source, if it is a mangled one.
std::string readable(char const* name) {
  if (name == nullptr) return {};
  int status = 0;
  std::unique_ptr<char, decltype(&std::free)> const text(
      abi::__cxa_demangle(name, nullptr, nullptr, &status), &std::free);
  return status == 0 && text != nullptr && std::strncmp(name, "_Z", 2) == 0 ? text.get() : name;
}

// What a kernel was launched with instead of pointers to arguments: all of them in one buffer.
char const* buffer_in(void* const* extra) {
  for (; extra != nullptr && *extra != CU_LAUNCH_PARAM_END; extra += 2) {
    if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER) return static_cast<char const*>(extra[1]);
  }
  return nullptr;
}

std::uint64_t number_of(void const* address) {
  return reinterpret_cast<std::uintptr_t>(address);
}

}  // namespace

std::vector<node_words::word> const& node_words::of(cudaGraphNode_t node, cudaGraphNodeType type) {
  words_.clear();
  if (type == cudaGraphNodeTypeKernel) {
    read_kernel(node);
  } else if (type == cudaGraphNodeTypeMemcpy) {
    cudaMemcpy3DParms params{};
    check(cudaGraphMemcpyNodeGetParams(node, &params), "cudaGraphMemcpyNodeGetParams");
    cudaExtent const& its = params.extent;
    if (its.width == 0 || its.height == 0 || its.depth == 0) return words_;
    words_.push_back({.value = number_of(params.dstPtr.ptr)});
    words_.push_back({.value = number_of(params.srcPtr.ptr), .argument = 1});
  } else if (type == cudaGraphNodeTypeMemset) {
    cudaMemsetParams params{};
    check(cudaGraphMemsetNodeGetParams(node, &params), "cudaGraphMemsetNodeGetParams");
    if (params.width == 0 || params.height == 0) return words_;
    words_.push_back({.value = number_of(params.dst)});
  }
  return words_;
}

void node_words::read_kernel(cudaGraphNode_t node) {
  constexpr std::size_t size = sizeof(std::uint64_t);
  kernel_arguments given;
  kernel_layout const& its = read_arguments(node, given);
  for (std::size_t i = 0; i < given.offsets.size(); ++i) {
    auto const [offset, length] = its.parameters[i];
    // Addresses are aligned in the kernel's parameters.
    for (std::size_t at = (size - offset % size) % size; at + size <= length; at += size) {
      word found{.argument = i, .offset = at, .is_whole = length == size, .kernel = &its};
      std::memcpy(&found.value, given.bytes.data() + offset + at, size);
      words_.push_back(found);
    }
  }
}

node_words::kernel_layout const& node_words::read_arguments(cudaGraphNode_t node,
                                                            kernel_arguments& read) {
  CUDA_KERNEL_NODE_PARAMS params{};
  check_driver(driver().params(node, &params), "cuGraphKernelNodeGetParams");
  kernel_layout const& its = layout_of(params.func, params.kern);
  char const* const buffer = buffer_in(params.extra);
  bool const is_told = params.kernelParams != nullptr || buffer != nullptr;
  read = {.kernel = params.kern,
          .grid = {params.gridDimX, params.gridDimY, params.gridDimZ},
          .block = {params.blockDimX, params.blockDimY, params.blockDimZ},
          .shared_bytes = params.sharedMemBytes};
  for (std::size_t i = 0; is_told && i < its.parameters.size(); ++i) {
    auto const [offset, length] = its.parameters[i];
    auto const* const from = params.kernelParams != nullptr
                                 ? static_cast<std::byte const*>(params.kernelParams[i])
                                 : reinterpret_cast<std::byte const*>(buffer + offset);
    read.offsets.push_back(offset);
    read.bytes.resize(std::max(read.bytes.size(), offset + length));
    std::copy_n(from, length, read.bytes.begin() + static_cast<std::ptrdiff_t>(offset));
  }
  return its;
}

node_words::kernel_layout const& node_words::layout_of(void* function, void* kernel) {
  auto const [found, is_new] = layouts_.try_emplace(function != nullptr ? function : kernel);
  if (!is_new) return found->second;
  auto* const its_function = static_cast<CUfunction>(function);
  auto* const its_kernel = static_cast<CUkernel>(kernel);
  try {
    kernel_layout& its = found->second;
    char const* name = nullptr;
    if (function != nullptr) {
      check_driver(driver().function_name(&name, its_function), "cuFuncGetName");
    } else {
      check_driver(driver().kernel_name(&name, its_kernel), "cuKernelGetName");
    }
    its.name = readable(name);
    while (true) {
      kernel_layout::parameter next{};
      std::size_t const index = its.parameters.size();
      auto const ask = [&] {
        return function != nullptr
                   ? driver().of_function(its_function, index, &next.offset, &next.bytes)
                   : driver().of_kernel(its_kernel, index, &next.offset, &next.bytes);
      };
      CUresult status = ask();
      if (status == CUDA_ERROR_INVALID_VALUE) status = ask();  // a failure does not repeat
      if (status == CUDA_ERROR_INVALID_VALUE) return its;      // it has no more
      check_driver(status, function != nullptr ? "cuFuncGetParamInfo" : "cuKernelGetParamInfo");
      its.parameters.push_back(next);
    }
  } catch (...) {
    layouts_.erase(found);
    throw;
  }
}

}  // namespace escrow::inline v0_2
