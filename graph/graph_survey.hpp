// Finds the graphs of a tree that the registry knows; registers copies, removes reference sets, and
// refuses graphs whose parts share scratch and may run concurrently.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "escrow/internal/reference_set.hpp"
#include "graph_core.hpp"

namespace escrow::inline v0_1 {

// A graph with its child graphs, at any depth, and bodies.
struct graph_survey {
  std::set<cudaGraph_t> known;   // graphs that hold something, or were hoisted
  std::size_t conditionals = 0;  // nodes
  // Fewer bodies were named than exist, while any graph holds anything.
  bool lacks_bodies = false;
  // Parts that share slots of a sharing group, and may run concurrently; empty: none.
  std::string concurrent;
};

// Walks `root`, its child graphs, and `bodies`. `core`: that of Escrow's graph, which it seals;
// null: a plain handle. The usage_error for a graph without a readable id names `call`. Throws
// cuda_error, std::bad_alloc.
[[nodiscard]] graph_survey survey_of(char const* call, cudaGraph_t root, graph_core* core,
                                     std::span<cudaGraph_t const> bodies);

// The same before a copy: also seals the sets, since the copy must not get later additions.
[[nodiscard]] graph_survey survey_for_copy(char const* call, graph_core& original);

// Registers the sets of a graph and its child graphs for a copy and its child graphs. An
// unregistered copy still keeps what it holds. Throws cuda_error, std::bad_alloc: some copies are
// registered then.
void note_copies(graph_survey const& originals, cudaGraph_t original, cudaGraph_t copy);

// During this scope, the survey's graphs have no reference sets, and these are sealed. If the
// constructor throws (cuda_error, std::bad_alloc, usage_error if parts of the graph share slots
// and may run concurrently), all are restored. Needs exclusive use of them.
class hoist_scope {
 public:
  hoist_scope(char const* call, graph_survey const& survey);
  hoist_scope(hoist_scope&&) = delete;
  ~hoist_scope();

  [[nodiscard]] reference_sets const& sets() const noexcept { return sets_; }  // each once
  void keep_off(graph_core* core) noexcept;  // makes the removal permanent; `core`: surveyed

 private:
  struct taken {
    cudaGraph_t graph;
    reference_set* set;  // while it is off, this has a reference to its user object
  };

  // Delegated to, so that the destructor restores what a throwing constructor removed.
  hoist_scope() = default;
  static void take_off(taken const& each);

  std::vector<taken> placed_;
  std::size_t off_ = 0;  // the first `off_` of them are off
  reference_sets sets_;
};

}  // namespace escrow::inline v0_1
