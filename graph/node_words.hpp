// SPDX-License-Identifier: Apache-2.0
// The addresses in a graph's nodes: words of kernels' arguments, and operands of copies and fills.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

namespace escrow::inline v0_2 {

// What a kernel's node was given.
struct kernel_arguments {
  std::vector<std::byte> bytes = {};      // all of them, as the kernel has them
  std::vector<std::size_t> offsets = {};  // of each
  void* kernel = nullptr;                 // a cudaKernel_t; null: a function
  dim3 grid = {};
  dim3 block = {};
  unsigned shared_bytes = 0;
};

// What: the words of nodes, and what is known of kernels, each asked for once.
// Thread safety: one thread at a time.
// Lifetime: of one walk through graphs that are not changed meanwhile.
// Capture: capture-safe.
// Errors: throws cuda_error, std::bad_alloc.
class node_words {
 public:
  struct kernel_layout {
    struct parameter {
      std::size_t offset;
      std::size_t bytes;
    };
    std::string name;
    std::vector<parameter> parameters;
  };
  struct word {
    std::uint64_t value = 0;
    // Of a kernel; of a copy 0 is the destination, 1 the source; of a fill 0.
    std::size_t argument = 0;
    std::size_t offset = 0;                 // in the argument
    bool is_whole = true;                   // it is all of the argument
    kernel_layout const* kernel = nullptr;  // null: a copy's, or a fill's
  };

  // Those of a node of that type; none of other types. The next call replaces them. Source:
  // cuGraphKernelNodeGetParams, cudaGraphMemcpyNodeGetParams, cudaGraphMemsetNodeGetParams.
  [[nodiscard]] std::vector<word> const& of(cudaGraphNode_t node, cudaGraphNodeType type);

  // What a kernel's node was given; returns what is known of the kernel. Source:
  // cuGraphKernelNodeGetParams, cuFuncGetParamInfo.
  kernel_layout const& read_arguments(cudaGraphNode_t node, kernel_arguments& read);

 private:
  struct driver_functions;
  [[nodiscard]] static driver_functions const& driver();
  void read_kernel(cudaGraphNode_t node);
  [[nodiscard]] kernel_layout const& layout_of(void* function, void* kernel);

  std::vector<word> words_;
  std::unordered_map<void const*, kernel_layout> layouts_;
};

}  // namespace escrow::inline v0_2
