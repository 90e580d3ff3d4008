// SPDX-License-Identifier: Apache-2.0
// What a node of a graph, also of one that is being captured, comes after.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <boost/container/small_vector.hpp>
#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_set>
#include <vector>

#include "escrow/core/capture.hpp"
#include "escrow/core/error.hpp"
#include "escrow/internal/driver.hpp"
#include "escrow/internal/graph_query.hpp"

namespace escrow::inline v0_2 {

using graph_nodes = std::vector<cudaGraphNode_t>;

// What the next operation on a capturing stream depends on.
struct capture_frontier {
  capture_frontier() = default;
  // Throws std::bad_alloc.
  explicit capture_frontier(detail::capture_dependencies const& after);

  boost::container::small_vector<cudaGraphNode_t, 4> nodes;  // its dependencies
  std::size_t ended = 0;  // it waits for the end of the first `ended` of them

  [[nodiscard]] std::span<cudaGraphNode_t const> all() const noexcept {
    return {nodes.data(), nodes.size()};
  }
  void merge(capture_frontier const& other) {  // adds the nodes of `other` that are missing here
    for (cudaGraphNode_t const node : other.nodes) {
      if (std::ranges::find(nodes, node) == nodes.end()) nodes.push_back(node);
    }
  }
};

// The nodes that a walk has met, in their order. Most walks are short, and allocate nothing.
class met_nodes {
 public:
  // False if it was met before. Throws std::bad_alloc.
  bool add(cudaGraphNode_t node) {
    if (contains(node)) return false;
    nodes_.push_back(node);
    if (nodes_.size() == few) by_hash_.insert(nodes_.begin(), nodes_.end());
    if (nodes_.size() > few) by_hash_.insert(node);
    return true;
  }
  [[nodiscard]] bool contains(cudaGraphNode_t node) const {
    if (nodes_.size() >= few) return by_hash_.contains(node);
    return std::ranges::find(nodes_, node) != nodes_.end();
  }
  [[nodiscard]] std::size_t size() const noexcept { return nodes_.size(); }
  [[nodiscard]] cudaGraphNode_t operator[](std::size_t i) const noexcept { return nodes_[i]; }

 private:
  static constexpr std::size_t few = 32;

  boost::container::small_vector<cudaGraphNode_t, few> nodes_;
  std::unordered_set<cudaGraphNode_t> by_hash_;  // all of them, once there are few
};

// Calls `found(node, edge)` for each node that `node` depends on. Throws cuda_error,
// std::bad_alloc.
template <class Found>
void for_each_dependency(cudaGraphNode_t node, Found found) {
  auto const ask = [node](cudaGraphNode_t* to, cudaGraphEdgeData* edges_to, std::size_t& count) {
    check(query_dependencies(node, to, edges_to, count), "cudaGraphNodeGetDependencies");
  };
  constexpr std::size_t few = 16;
  std::array<cudaGraphNode_t, few> earlier;  // NOLINT(*-member-init): CUDA writes `count` of them
  std::array<cudaGraphEdgeData, few> edges;  // NOLINT(*-member-init): the same
  std::size_t count = few;
  ask(earlier.data(), edges.data(), count);
  if (count < few) [[likely]] {
    for (std::size_t i = 0; i < count; ++i) found(earlier[i], edges[i]);
    return;
  }
  ask(nullptr, nullptr, count);  // perhaps there are more
  std::vector<cudaGraphNode_t> all(count);
  std::vector<cudaGraphEdgeData> all_edges(count);
  ask(all.data(), all_edges.data(), count);
  for (std::size_t i = 0; i < count; ++i) found(all[i], all_edges[i]);
}

// Removes what one of `after` is, or ends after, as far as a short walk back finds it: these lists
// would grow with each lease that ends on another stream than its own. Throws cuda_error,
// std::bad_alloc.
void remove_before(graph_nodes& earlier, std::span<cudaGraphNode_t const> after);

// An order-independent hash of the dependencies and edges of all `asked`. Collisions have a chance
// of one in 2^64. Throws cuda_error, std::bad_alloc.
[[nodiscard]] std::uint64_t fingerprint_of(std::span<cudaGraphNode_t const> asked);

}  // namespace escrow::inline v0_2
