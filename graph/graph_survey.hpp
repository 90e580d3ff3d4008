// SPDX-License-Identifier: Apache-2.0
// Finds the graphs of a tree that the registry knows; registers copies, removes reference sets, and
// refuses graphs whose parts share scratch and may run concurrently.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "escrow/internal/graph_registry.hpp"
#include "escrow/internal/parked_group.hpp"
#include "escrow/internal/reference_set.hpp"
#include "graph_core.hpp"
#include "graph_shape.hpp"
#include "shared_claims.hpp"

namespace escrow::inline v0_2 {

// A graph with its child graphs, at any depth, and bodies.
struct graph_survey {
  std::set<cudaGraph_t> known;   // graphs that hold something, or were hoisted
  std::size_t conditionals = 0;  // nodes
  bool is_for_exec = false;
  // Fewer bodies were named than exist, while any graph holds anything.
  bool lacks_bodies = false;
  // Why no exec may run it; empty: nothing is wrong. Parts share slots of a sharing group, and may
  // run concurrently, or one runs while a lease of another covers the same slot.
  std::string problem;
  std::string advice;
  graph_registry::group_set groups;  // of all
  // Of each kernel that runs in clusters, its place and their size: see graph_shape. For an exec.
  kernel_clusters clusters;
  exec_claims claims;                          // for an exec
  std::shared_ptr<hoist_note const> released;  // of any of them
  group_pins pins;                             // of a copy: they are not parked meanwhile
};

// Walks `root`, its child graphs, and `bodies`. `core`: that of Escrow's graph, which it seals;
// null: a plain handle. The usage_error for a graph without a readable id names `call`. Throws
// cuda_error, std::bad_alloc. `is_for_exec`: with `clusters`, by a call of the driver for each
// kernel, and `claims`.
[[nodiscard]] graph_survey survey_of(char const* call, cudaGraph_t root, graph_core* core,
                                     std::span<cudaGraph_t const> bodies, bool is_for_exec = false);

// The same before a copy: also seals the sets, since the copy must not get later additions. Throws
// usage_error if a sharing group of it is parked.
[[nodiscard]] graph_survey survey_for_copy(char const* call, graph_core& original);

// What others inherit of a graph, and each of its child graphs. note_copies() does it for copies,
// hoist_scope for the rest.
//                    clone          child graph     exec, update    hoisted
//   reference sets   all            all             all             all, off the graph
//   hoisted before   is known       is known        nothing of it   refused, if no set is left
//   sharing groups   all            all             of the sets     of the sets
//   their leases     all, at the nodes of the copy  -               -
//   nodes' owners    of its nodes   in the sets     in the sets     in the sets
//   device, deleter  the graph's    of the sets     of the sets     of the sets
// Groups and leases are also those of what was hoisted before. A body cannot be copied: it is
// surveyed beside its graph, for which all of its own is taken. A graph that is detached, or given
// to a `graph` by its handle, keeps everything.

// Registers what copies inherit. `root`: what the copy becomes a part of, or itself. What is
// captured or added later is the original's or the copy's alone. An unregistered copy still keeps
// what it holds. Throws cuda_error, std::bad_alloc: some copies are registered then.
void note_copies(graph_survey const& originals, cudaGraph_t original, cudaGraph_t copy,
                 cudaGraph_t root);

// During this scope, the survey's graphs have no reference sets, and these are sealed. If the
// constructor throws (cuda_error, std::bad_alloc, usage_error if the survey found a problem or a
// sharing group is parked), all are restored. No such group is parked meanwhile. Needs exclusive
// use of them.
class hoist_scope {
 public:
  hoist_scope(char const* call, graph_survey const& survey);
  hoist_scope(hoist_scope&&) = delete;
  ~hoist_scope();

  [[nodiscard]] reference_sets const& sets() const noexcept { return sets_; }  // each once
  // Makes the removal permanent. `core`: surveyed.
  void keep_off(graph_core* core, hoist_ref const& by) noexcept;

 private:
  struct taken {
    cudaGraph_t graph;
    reference_set* set;  // while it is off, this has a reference to its user object
  };

  // Delegated to, so that the destructor restores what a throwing constructor removed.
  hoist_scope() = default;

  group_pins pins_;
  std::vector<taken> placed_;
  std::size_t off_ = 0;  // the first `off_` of them are off
  reference_sets sets_;
};

}  // namespace escrow::inline v0_2
