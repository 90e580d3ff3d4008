// SPDX-License-Identifier: Apache-2.0
// Parts of a graph that use the same claims, as copies of one graph do: nothing but the graph's
// edges orders them.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "escrow/internal/graph_registry.hpp"
#include "graph_core.hpp"

namespace escrow::inline v0_2 {

// Whether two parts of `graph`, or of a graph in it, use the same claims without a sharing group,
// and may run concurrently. Parts are child nodes, conditional nodes with these bodies, and the
// graph's own nodes. Of these nobody knows which use a claim: all count. Throws cuda_error,
// std::bad_alloc.
[[nodiscard]] bool has_unordered_claims(cudaGraph_t graph,
                                        std::span<graph_core::body const> bodies);

// The claims, without a sharing group, of a graph and the child graphs in it. Throws the same.
[[nodiscard]] graph_registry::group_set claims_in(cudaGraph_t graph);

inline constexpr char const* claims_may_race =
    "two parts of the graph, such as copies of one child graph, use what one capture claimed, or "
    "an "
    "owner that was moved in, and may run concurrently";
inline constexpr char const* order_the_claims =
    "order them, with node::after or graph::add_child; or capture the work once for each, or share "
    "an owner that is only read (std::shared_ptr)";

// What: the claims that the graphs of an exec use, in the order of a walk. The exec's own graph may
//   have changed since. Until an update it is known which graph has which; an update pairs nodes in
//   CUDA's way, so that afterwards only the claims of all together are known.
// Thread safety: a value. The exec keeps no claim by it.
// Errors: add() and set() throw std::bad_alloc.
class exec_claims {
 public:
  // A graph of it, of that child node, or of none; `depth`: how many such nodes it is in. Those in
  // it follow it.
  void add(cudaGraphNode_t node, std::size_t depth, graph_registry::group_set const& its_own) {
    graphs_.push_back({node, depth, {its_own.begin(), its_own.end()}});
  }
  // Whether another part of the exec may have one of them that the child node does not have.
  [[nodiscard]] bool may_race(cudaGraphNode_t node, graph_registry::group_set const& claims) const;
  // The child node, with what is in it, has these.
  void set(cudaGraphNode_t node, graph_registry::group_set const& claims);
  // Of a graph of the same shape, which the exec runs from now on.
  void update(exec_claims&& other) noexcept;

 private:
  using orders = std::vector<std::weak_ptr<launch_order>>;  // only compared
  struct graph_of {
    cudaGraphNode_t node;
    std::size_t depth;
    orders claims;
  };
  // That of the node, and those in it.
  [[nodiscard]] std::span<graph_of const> parts_of(cudaGraphNode_t node) const noexcept;

  std::vector<graph_of> graphs_;
  std::vector<graph_of> of_update_;  // of the last one, of nodes that are not known
};

}  // namespace escrow::inline v0_2
