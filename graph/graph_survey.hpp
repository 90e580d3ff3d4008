// Finds the graphs of a tree that the registry knows; registers copies, removes reference sets, and
// refuses graphs whose parts share scratch and may run concurrently.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "escrow/internal/reference_set.hpp"
#include "graph_core.hpp"

namespace escrow::inline v0_1 {

// A graph with its child graphs, at any depth, and bodies.
struct graph_survey {
  // The graphs with registry entries, and their ids there: those that hold something, or were
  // hoisted.
  std::map<cudaGraph_t, std::uint64_t> known;
  std::size_t conditionals = 0;  // nodes
  // Fewer bodies were named than exist, while any graph holds anything.
  bool lacks_bodies = false;
  // Parts that share slots of a sharing group, and may run concurrently; empty: none.
  std::string concurrent;
};

// The start of a survey: a plain handle, or an Escrow graph, which has more information.
struct survey_root {
  // NOLINTNEXTLINE(google-explicit-constructor): either is a graph.
  survey_root(cudaGraph_t plain) noexcept : handle(plain) {}
  // Null: a moved-from graph. Throws as graph_core::seal().
  // NOLINTNEXTLINE(google-explicit-constructor)
  survey_root(graph_core* ours);

  cudaGraph_t handle = nullptr;
  std::uint64_t key = 0;       // 0: to be queried
  graph_core* core = nullptr;  // null: a plain handle
};

// Walks `root`, its child graphs, and `bodies`. The usage_error for a graph without a readable id
// names `call`. Throws cuda_error, std::bad_alloc.
[[nodiscard]] graph_survey survey_of(char const* call, survey_root const& root,
                                     std::span<cudaGraph_t const> bodies);

// The same before a copy: also seals the sets, since the copy must not get later additions.
[[nodiscard]] graph_survey survey_for_copy(char const* call, graph_core& original);

// Registers the sets of a graph and its child graphs for a copy and its child graphs. `id`: the
// copy's, or 0. An unregistered copy still keeps what it holds. Throws cuda_error, std::bad_alloc:
// some copies are registered then.
void note_copies(graph_survey const& originals, cudaGraph_t original, cudaGraph_t copy,
                 std::uint64_t id);

// During this scope, the survey's graphs have no reference sets, and these are sealed. If the
// constructor throws (cuda_error, std::bad_alloc, usage_error if parts of the graph share slots
// and may run concurrently), all are restored. Needs exclusive use of them.
class hoist_scope {
 public:
  hoist_scope(char const* call, graph_survey const& survey);
  hoist_scope(hoist_scope&&) = delete;
  ~hoist_scope();

  [[nodiscard]] reference_sets const& sets() const noexcept { return sets_; }  // each once
  void keep_off(survey_root const& root) noexcept;  // makes the removal permanent; `root`: surveyed

 private:
  struct taken {
    cudaGraph_t graph;
    std::uint64_t graph_id;
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
