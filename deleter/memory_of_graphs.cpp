// SPDX-License-Identifier: Apache-2.0
// Lists what memory graphs hold, of their reference sets and leases.
#include <mutex>

#include "escrow/internal/graph_registry.hpp"
#include "escrow/internal/reference_set.hpp"

namespace escrow::inline v0_2 {

void reference_set::list_memory(held_memory& to) const {
  if (is_closed() || is_off_graphs()) return;
  for (auto const& each : members_) {
    if (each->is_slot()) {
      auto const& its = static_cast<slot_reference const&>(*each);
      to.slots.insert(its.slot_address());
      to.has_owners |= its.may_own();
      continue;
    }
    to.has_owners = true;
    for (reclaimable const* part = each->next_; part != nullptr; part = part->next_) {
      if (!part->is_slot()) continue;
      auto const& share = static_cast<slot_reference const&>(*part);
      to.slots.insert(share.slot_address());
      to.may_hold_more |= share.range().arena != nullptr;  // its place there is another graph's
    }
  }
}

held_memory graph_registry::memory_of(std::span<cudaGraph_t const> graphs) const {
  held_memory all;
  auto const add = [&all](group_lease const& each) {
    if (each.place.slot != 0) return;
    all.ranges.push_back({&each.origin->group, each.place.begin, each.place.end});
  };
  std::lock_guard const lock(mutex_);
  for (cudaGraph_t const graph : graphs) {
    entry const* const found = find(graph);
    auto const is_released = [](auto const& by) {
      return by->is_released.load(std::memory_order_relaxed);
    };
    bool const is_exact = found != nullptr && std::ranges::all_of(found->hoists, is_released);
    all.may_hold_more |= !is_exact;
    if (found == nullptr) continue;
    for (reference_set const* const each : found->sets) each->list_memory(all);
    if (found->sets.empty() && !found->hoists.empty() && is_exact) continue;
    for (lease_span const& each : found->copied_leases) add(*each.lease);
    found->leases.for_each([&](auto const& each) { add(*each); });
  }
  return all;
}

held_memory graph_registry::memory_of_sets(reference_sets const& sets) const {
  held_memory all;
  std::lock_guard const lock(mutex_);
  for (auto const& each : sets) each->list_memory(all);
  return all;
}

}  // namespace escrow::inline v0_2
