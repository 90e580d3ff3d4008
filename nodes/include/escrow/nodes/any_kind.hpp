// SPDX-License-Identifier: Apache-2.0
// The kind of a node that is there, as a value.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <utility>
#include <vector>

#include "escrow/detail/node_kind.hpp"
#include "escrow/version.hpp"

namespace escrow::inline v0_2 {

// What: what a node was when node::kind() read it: parameters, a kernel's arguments and launch
//   attributes, and a share of what the node keeps. add(), node::set() and set() take it as a kind
//   of their own, again and again, for any graph; whoever uses one owner in several nodes orders
//   that use.
// Thread safety: any thread reads it, one at a time assigns to it.
// Lifetime: a value, which keeps the owner.
// Capture: capture-safe.
// Errors: none; see node::kind().
class ESCROW_API any_kind {
 public:
  // A copy is the same kind. There is no move: what one leaves could not be used.
  any_kind(any_kind const&) noexcept = default;
  any_kind& operator=(any_kind const&) noexcept = default;
  ~any_kind() = default;

  // The type of its params().
  [[nodiscard]] cudaGraphNodeType type() const noexcept;
  // Whether the graph keeps something for the node: what was given to the kind that it was made of.
  [[nodiscard]] bool has_owner() const noexcept;
  // CUDA's parameters. What they point to is this object's, or its copies'.
  [[nodiscard]] cudaGraphNodeParams const& params() const noexcept;

  // Internal: for add() and the like.
  [[nodiscard]] detail::node_draft draft(char const* call, graph_core& core) const;
  // Internal: the same for a node that has attributes: what the kind lacks of them is taken from
  // it. `attributes`: the memory for them.
  [[nodiscard]] detail::node_draft draft_for(cudaGraphNode_t changed,
                                             std::vector<cudaLaunchAttribute>& attributes) const;
  // Internal: without attributes, if the node has the same ones.
  [[nodiscard]] detail::node_draft draft_in_exec(cudaGraphNode_t changed) const;

 private:
  friend class node;
  struct content;

  explicit any_kind(std::shared_ptr<content const> read) noexcept : read_(std::move(read)) {}

  std::shared_ptr<content const> read_;
};

}  // namespace escrow::inline v0_2
