// Which payload each node of a graph has.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "escrow/detail/reference_set.hpp"
#include "escrow/detail/retired_object.hpp"

namespace escrow {

struct launch_params;  // of escrow/nodes.hpp; opaque here

// The nodes that have a payload. Thread safety: as a vector; find() is const in name and effect
// only once the table is sorted.
class node_table {
 public:
  struct entry {
    cudaGraphNode_t node = nullptr;
    retired_object* owner = nullptr;
    launch_params const* launched = nullptr;
    // That the owner is in, which is on the graph; null: the owner is not yet on the graph.
    reference_set* set = nullptr;
  };

  [[nodiscard]] std::vector<entry>& entries() noexcept { return entries_; }
  [[nodiscard]] std::vector<entry> const& entries() const noexcept { return entries_; }

  // So that the next insert() allocates nothing. Throws std::bad_alloc.
  void reserve_one() {
    constexpr std::size_t first_room = 16;
    if (entries_.size() < entries_.capacity()) return;
    entries_.reserve(std::max(first_room, 2 * entries_.size()));
  }
  void insert(entry const& added) noexcept {
    is_sorted_ = is_sorted_ && (entries_.empty() || entries_.back().node < added.node);
    entries_.push_back(added);
  }
  void erase(entry* found) noexcept {
    entries_.erase(entries_.begin() + (found - entries_.data()));
  }

  // The entry of a node, for another, which has no owner if there is to be none. Throws
  // std::bad_alloc.
  void replace(cudaGraphNode_t node, entry const& next) {
    reserve_one();
    if (entry* const found = find(node)) erase(found);
    if (next.owner != nullptr) insert(next);
    sort();
  }

  void sort() noexcept {
    if (!is_sorted_) std::ranges::sort(entries_, {}, &entry::node);
    is_sorted_ = true;
  }
  // Null if the node has no payload.
  [[nodiscard]] entry* find(cudaGraphNode_t node) noexcept {
    sort();
    auto const found = std::ranges::lower_bound(entries_, node, {}, &entry::node);
    return found != entries_.end() && found->node == node ? &*found : nullptr;
  }
  // The table must be sorted.
  [[nodiscard]] entry const* find(cudaGraphNode_t node) const noexcept {
    auto const found = std::ranges::lower_bound(entries_, node, {}, &entry::node);
    return found != entries_.end() && found->node == node ? &*found : nullptr;
  }

 private:
  std::vector<entry> entries_;
  bool is_sorted_ = true;
};

}  // namespace escrow
