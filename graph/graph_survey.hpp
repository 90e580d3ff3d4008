// Which graphs of a tree the registry knows, and what is done with all of them: noting copies,
// taking reference sets off.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "escrow/detail/reference_set.hpp"
#include "graph_core.hpp"

namespace escrow {

class graph;

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

// What the tree of a graph that is about to be copied holds; its sets are sealed. Throws as
// survey_of().
[[nodiscard]] graph_survey survey_for_copy(char const* call, graph const& original);

// What: notes for a copy of a graph, and for the copies of its child graphs, what the originals
//   hold. A copy that is not noted is right as it is: it counts as one of which nobody knows what
//   it holds.
// Thread safety: exclusive access to the graph around.
// Lifetime: no longer than what it was made of.
class copy_notes {
 public:
  // `around`: the copy, or the graph whose child it is.
  copy_notes(graph_survey const& originals, graph_core& around) noexcept
      : originals_(originals), around_(around) {}

  // `id`: the copy's, or 0. Throws cuda_error, std::bad_alloc: some copies are noted then.
  void note(cudaGraph_t original, cudaGraph_t copy, std::uint64_t id);
  // From now on the graph around knows which of the copies hold nothing.
  void commit() noexcept { around_.blank_copies.merge(blank_); }

 private:
  graph_survey const& originals_;
  graph_core& around_;
  std::set<cudaGraph_t> blank_;
};

// While it lives, the graphs of the survey have no reference sets, and nothing is appended to these
// sets any more. A constructor that throws (cuda_error, std::bad_alloc) has put back all. No other
// thread may use the graphs meanwhile.
class hoist_scope {
 public:
  explicit hoist_scope(graph_survey const& survey);
  hoist_scope(hoist_scope&&) = delete;
  ~hoist_scope();

  // Whether what is instantiated now is bare: see graph_exec::is_bare().
  [[nodiscard]] bool is_bare() const noexcept { return is_bare_; }
  // What was taken off, each once.
  [[nodiscard]] reference_sets const& sets() const noexcept { return sets_; }
  // Leaves the graphs without them.
  void keep_off() noexcept;

 private:
  struct taken {
    cudaGraph_t graph;
    std::uint64_t graph_id;
    reference_set* set;
    cudaUserObject_t object;  // with a reference of this while it is off
  };

  static void take_off(taken const& each);
  void put_back_all() noexcept;

  std::vector<taken> placed_;
  std::size_t off_ = 0;  // the first so many of them are off
  reference_sets sets_;
  bool is_bare_;
};

}  // namespace escrow
