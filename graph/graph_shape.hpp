// SPDX-License-Identifier: Apache-2.0
// What graphs must have in common to use one exec in turn.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <string>
#include <vector>

namespace escrow::inline v0_2 {

// What: what cudaGraphExecUpdate keeps from the graph that the exec was created from, some of it
//   without an error (measured: cluster dimensions), and what it refuses to change: nodes and edges
//   in CUDA's order, also of child graphs, the kernels' functions, and their launch attributes, as
//   far as CUDA tells them. Grids, blocks, arguments and addresses are not part of it.
// Thread safety: a value.
struct graph_shape {
  // What of this differs, in words; empty: nothing. Throws std::bad_alloc.
  [[nodiscard]] std::string difference_from(graph_shape const& other) const;

  // Why an exec of this graph can be used by no other; empty: it can.
  std::string obstacle;
  unsigned long long flags = 0;  // of the instantiation
  // Bytes, of all nodes in order.
  std::string types;
  std::string edges;
  std::string kernels;
  std::string attributes;
};

// Of the kernels of several graphs, in order: how many there are before, and the size of its
// clusters, of each that has one. cudaGraphExecUpdate keeps them without an error (measured). It
// pairs nodes by their edges, so that the order of these belongs to it.
struct kernel_clusters {
  struct one {
    std::size_t place;
    std::array<unsigned, 3> size;
    bool operator==(one const&) const = default;
  };
  bool operator==(kernel_clusters const&) const = default;

  std::vector<one> all;
  std::size_t kernels = 0;  // looked at
  std::string order;        // types and edges of all nodes, if any has clusters
};
// Throws cuda_error, std::bad_alloc.
void add_clusters(kernel_clusters& to, std::vector<cudaGraphNode_t> const& kernels);
// Of a graph with its child graphs. Throws the same.
void add_order(kernel_clusters& to, cudaGraph_t graph);

// `flags`: of the instantiation. Throws cuda_error, std::bad_alloc.
[[nodiscard]] graph_shape shape_of(cudaGraph_t graph, unsigned long long flags);

}  // namespace escrow::inline v0_2
