// SPDX-License-Identifier: Apache-2.0
// What was released before a claim, in the order of a graph that is being captured.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "graph_walk.hpp"

namespace escrow::inline v0_2 {

using stamps = std::vector<std::uint64_t>;  // of releases

// What: a walk from a claim's frontier back, nearest nodes first, that looks for the nodes that
//   releases came after.
// Thread safety: its thread's; asks CUDA, so no lock is held.
// Errors: cuda_error, std::bad_alloc.
class released_walk {
 public:
  struct sought_range {
    graph_nodes after;
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
    for (std::size_t i = 0; i < sought_.size(); ++i) {
      for (cudaGraphNode_t const node : sought_[i].after) by_node_.emplace(node, i);
      if (sought_[i].after.empty()) note(sought_[i]);
    }
    for (cudaGraphNode_t const node : from.all().first(from.ended)) add(node);
  }
  // Goes on until `nodes_max` were looked at, or all is found. True if it is over.
  bool go_on(std::size_t nodes_max) {
    for (; missing_ != 0 && walked_ < open_.size(); ++walked_) {
      if (walked_ == nodes_max) return false;
      cudaGraphNode_t const node = open_[walked_];
      auto const its = std::ranges::find(known_, node, &known_node::node);
      if (its != known_.end() && fingerprint_of({&node, 1}) == its->edges) {
        note_known(*its->found);
        continue;
      }
      for_each_dependency(node, [&](cudaGraphNode_t earlier, cudaGraphEdgeData const& edge) {
        if (!seen_.contains(earlier) && ends_after(node, edge)) add(earlier);
      });
    }
    return true;
  }
  [[nodiscard]] bool is_any_missing() const noexcept { return missing_ != 0; }
  // What the claim comes after.
  [[nodiscard]] stamps const& found() const noexcept { return found_; }

 private:
  void add(cudaGraphNode_t node) {
    seen_.insert(node);
    open_.push_back(node);
    auto const [begin, end] = by_node_.equal_range(node);
    for (auto at = begin; at != end; ++at) {
      sought_range& its = sought_[at->second];
      if (its.missing != 0 && --its.missing == 0) note(its);
    }
  }
  void note_known(stamps const& behind) {
    std::vector<sought_range*> found;
    graph_nodes needed;
    for (sought_range& each : sought_) {
      if (each.missing == 0 || std::ranges::find(behind, each.stamp) == behind.end()) continue;
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
    if (fingerprint_of(its.after) == its.edges) found_.push_back(its.stamp);
  }

  cudaGraph_t graph_;
  std::vector<sought_range> sought_;
  std::unordered_multimap<cudaGraphNode_t, std::size_t> by_node_;
  known_nodes known_;
  std::unordered_set<cudaGraphNode_t> seen_;
  std::vector<cudaGraphNode_t> open_;
  std::size_t walked_ = 0;
  std::size_t missing_;
  stamps found_;
};

}  // namespace escrow::inline v0_2
