// Which graphs of a tree the registry knows.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "escrow/graph/graph.hpp"

namespace escrow {

// A graph's handle, and the id by which the registry knows it.
struct identified_graph {
  cudaGraph_t graph;
  std::uint64_t id;
};

// A graph with its child graphs and bodies, as far as they may hold references.
struct graph_survey {
  std::vector<identified_graph> known;  // those that the registry has entries of
  std::vector<cudaGraph_t> unknown;  // those that may be plain copies of graphs that hold something
  bool lacks_bodies = false;         // not as many bodies were named as there must be
  // Of the root and its child graphs; nothing if they were not walked, since nobody holds anything.
  std::optional<std::size_t> conditionals;

  // Whether no graph of the tree can hold a reference but the known.
  [[nodiscard]] bool is_complete() const noexcept { return unknown.empty() && !lacks_bodies; }
  [[nodiscard]] bool is_unknown(cudaGraph_t graph) const noexcept;
  // 0 if it is not among the known.
  [[nodiscard]] std::uint64_t known_id(cudaGraph_t graph) const noexcept;
};

// Where a survey begins: a plain handle, or one of our graphs, which knows more about itself.
struct survey_root {
  // NOLINTNEXTLINE(google-explicit-constructor): either is a graph.
  survey_root(cudaGraph_t plain) noexcept : handle(plain) {}
  // Throws as graph::get().
  // NOLINTNEXTLINE(google-explicit-constructor)
  survey_root(graph const& ours);

  cudaGraph_t handle = nullptr;
  std::uint64_t key = 0;  // 0: to be found
  bool is_original = false;
  graph_core* core = nullptr;  // null: a plain handle
};

// Walks `root`, its child graphs, and `bodies`. `call` is named in the usage_error for a graph
// whose id CUDA does not tell. Throws cuda_error, std::bad_alloc.
[[nodiscard]] graph_survey survey_of(char const* call, survey_root const& root,
                                     std::span<cudaGraph_t const> bodies);

// A graph's nodes, as CUDA orders them. Throws cuda_error, std::bad_alloc.
[[nodiscard]] std::vector<cudaGraphNode_t> nodes_of(cudaGraph_t graph);

// An edge of a graph.
struct graph_edge {
  cudaGraphNode_t from;
  cudaGraphNode_t to;
  cudaGraphEdgeData data;
};

// All edges of a graph. Throws cuda_error, std::bad_alloc.
[[nodiscard]] std::vector<graph_edge> edges_of(cudaGraph_t graph);

// The embedded graphs of a graph's child nodes, in the order of its nodes, and how many conditional
// nodes it has.
struct inner_graphs {
  std::vector<cudaGraph_t> children;
  std::size_t conditionals = 0;
};
[[nodiscard]] inner_graphs inner_graphs_of(cudaGraph_t graph);

}  // namespace escrow
