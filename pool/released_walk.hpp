// SPDX-License-Identifier: Apache-2.0
// What was released before a claim, in the order of a graph that is being captured.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "escrow/internal/group_lease.hpp"
#include "graph_walk.hpp"

namespace escrow::inline v0_2 {

using stamps = std::vector<std::uint64_t>;  // of releases, sorted

// What: a walk from a claim's frontier back, nearest nodes first, that looks for the nodes that
//   releases came after.
// Thread safety: its thread's; asks CUDA, so no lock is held.
// Errors: cuda_error, std::bad_alloc.
class released_walk {
 public:
  struct sought_range {
    few_nodes after;
    std::uint64_t edges;  // their fingerprint
    std::uint64_t stamp;
    std::size_t missing;  // how many of the nodes were not met
  };
  // Of earlier walks: what is found from a node on, and the fingerprint of its edges then.
  struct known_node {
    cudaGraphNode_t node;
    std::uint64_t edges;
    std::shared_ptr<stamps const> found;
  };
  using known_nodes = std::vector<known_node>;

  released_walk(cudaGraph_t graph, capture_frontier const& from, std::vector<sought_range> sought,
                known_nodes known)
      : graph_(graph),
        sought_(std::move(sought)),
        known_(std::move(known)),
        missing_(sought_.size()) {
    for (sought_range& each : sought_) {
      for (cudaGraphNode_t const node : each.after) by_node_.emplace_back(node, &each);
      if (each.after.empty()) note(each);
    }
    std::ranges::sort(by_node_, {}, &looked_for::first);
    for (cudaGraphNode_t const node : from.all().first(from.ended)) add(node);
  }
  released_walk(released_walk&&) = delete;
  // Goes on until `nodes_max` were looked at, or all is found. True if it is over.
  bool go_on(std::size_t nodes_max) {
    for (; missing_ != 0 && walked_ < met_.size(); ++walked_) {
      if (walked_ == nodes_max) return false;
      cudaGraphNode_t const node = met_[walked_];
      auto const its = std::ranges::find(known_, node, &known_node::node);
      if (its != known_.end() && fingerprint_of({&node, 1}) == its->edges) {
        note_known(*its->found);
        continue;
      }
      for_each_dependency(node, [&](cudaGraphNode_t earlier, cudaGraphEdgeData const& edge) {
        if (ends_after(node, edge)) add(earlier);
      });
    }
    return true;
  }
  [[nodiscard]] bool is_any_missing() const noexcept { return missing_ != 0; }
  // What the claim comes after.
  [[nodiscard]] stamps const& found() const noexcept { return found_; }

 private:
  using looked_for = std::pair<cudaGraphNode_t, sought_range*>;

  void add(cudaGraphNode_t node) {
    if (!met_.add(node)) return;
    auto at = std::ranges::lower_bound(by_node_, node, {}, &looked_for::first);
    for (; at != by_node_.end() && at->first == node; ++at) {
      sought_range& its = *at->second;
      if (its.missing != 0 && --its.missing == 0) note(its);
    }
  }
  void note_known(stamps const& behind) {
    std::vector<sought_range*> found;
    graph_nodes needed;
    for (sought_range& each : sought_) {
      if (each.missing == 0 || !std::ranges::binary_search(behind, each.stamp)) continue;
      found.push_back(&each);
      needed.insert(needed.end(), each.after.begin(), each.after.end());
    }
    if (found.empty()) return;
    // Of a graph that was edited and captured into again some may be destroyed.
    std::ranges::sort(needed);
    graph_nodes there;
    for (cudaGraphNode_t const node : nodes_of(graph_)) {
      if (std::ranges::binary_search(needed, node)) there.push_back(node);
    }
    std::ranges::sort(there);
    auto const is_there = [&](cudaGraphNode_t node) {
      return std::ranges::binary_search(there, node);
    };
    for (sought_range* const each : found) {
      if (std::ranges::all_of(each->after, is_there)) note(*each);
    }
  }
  void note(sought_range& its) {
    its.missing = 0;
    --missing_;
    // Handles of destroyed nodes are used again.
    if (fingerprint_of({its.after.data(), its.after.size()}) != its.edges) return;
    found_.insert(std::ranges::upper_bound(found_, its.stamp), its.stamp);
  }

  cudaGraph_t graph_;
  std::vector<sought_range> sought_;
  std::vector<looked_for> by_node_;  // sorted by the node
  known_nodes known_;
  met_nodes met_;
  std::size_t walked_ = 0;
  std::size_t missing_;
  stamps found_;
};

}  // namespace escrow::inline v0_2
