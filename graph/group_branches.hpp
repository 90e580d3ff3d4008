// Refuses graphs whose branches share scratch and may run concurrently.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "escrow/version.hpp"

namespace escrow::inline v0_1 {

// A graph with its child graphs, at any depth, in node order, which a copy preserves.
struct graph_tree {
  // A child graph's node; its graphs are those from `begin` to before `end`.
  struct child {
    std::size_t in;  // the graph that has the node
    cudaGraphNode_t node;
    std::size_t begin;
    std::size_t end;
  };

  std::vector<cudaGraph_t> graphs;
  std::vector<child> children;
  std::size_t conditionals = 0;  // nodes
};

// Throws usage_error, naming `call`, if two graphs of the tree belong to one sharing group and may
// run concurrently. `known`: the ids of the tree's graphs. `bodies_begin`: the first body of a
// conditional node in the tree; a body may run whenever others do. Throws cuda_error,
// std::bad_alloc.
void require_serial_groups(char const* call, graph_tree const& tree, std::size_t bodies_begin,
                           std::map<cudaGraph_t, std::uint64_t> const& known);

}  // namespace escrow::inline v0_1
