// All references that a graph has got up to a moment, as one.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "escrow/deleter/graph_reference.hpp"
#include "escrow/deleter/launch_order.hpp"
#include "escrow/deleter/release_node.hpp"

namespace escrow {

// What: an unchangeable set of references of one deleter, which graphs and execs share, so that
//   each of them holds one thing instead of many. A reference is in one bundle, or in more if CUDA
//   refused to take it off its graph, which then has them all, or if one takes the place of
//   another (see order()); execs that share a reference thus share a launch order, and take turns.
// Thread safety: hold() and let_go() from any thread, also in a destroy callback.
// Memory ordering: as graph_reference.
// Lifetime: made with one holder, who made it. When the last lets go, its references are let go on
//   the same thread, which pushes those that nobody else holds, and the worker frees it.
// Capture: calls no CUDA function.
// Errors: make() throws std::bad_alloc and then holds nothing.
class graph_bundle final : public release_node {
 public:
  // `parts` must not be empty, be of `hub`, and be held until this returns. One that takes over
  // parts of another bundle has its `order`.
  [[nodiscard]] static graph_bundle& make(
      release_hub& hub, std::vector<graph_reference*> parts,
      std::shared_ptr<launch_order> order = std::make_shared<launch_order>());

  // Lets go of a bundle that was made, at the end of a scope.
  struct let_go_at_end {
    void operator()(graph_bundle* made) const noexcept { made->let_go(); }
  };
  using pointer = std::unique_ptr<graph_bundle, let_go_at_end>;

  // As graph_reference.
  void hold() noexcept { holders_.fetch_add(1, std::memory_order_relaxed); }
  void let_go() noexcept;

  [[nodiscard]] std::span<graph_reference* const> parts() const noexcept { return parts_; }
  // The turns of execs that hold this bundle, or another of the same order.
  [[nodiscard]] std::shared_ptr<launch_order> const& order() const noexcept { return order_; }

 private:
  friend class graph_registry;

  graph_bundle(release_hub& hub, std::vector<graph_reference*> parts,
               std::shared_ptr<launch_order> order);
  ~graph_bundle() = default;
  static void reclaim_bundle(release_node& node) noexcept;

  std::vector<graph_reference*> const parts_;
  std::vector<std::uint64_t> graph_ids_;  // where the registry has it: guarded by the registry
  std::atomic<std::uint32_t> holders_{1};
  std::shared_ptr<launch_order> const order_;
};

}  // namespace escrow
