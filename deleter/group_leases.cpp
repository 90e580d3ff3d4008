// SPDX-License-Identifier: Apache-2.0
// Leases of sharing groups, by graph: noted by claims, copied with the graph, told of at the end of
// their capture.
#include "escrow/internal/group_lease.hpp"

#include <algorithm>
#include <new>

#include "escrow/core/error.hpp"
#include "escrow/internal/deleter_core.hpp"
#include "escrow/internal/graph_registry.hpp"
#include "escrow/internal/reference_set.hpp"

namespace escrow::inline v0_2 {

std::shared_ptr<group_lease> graph_registry::note_lease(
    std::uint64_t id, cudaGraph_t graph, std::shared_ptr<lease_origin const> const& origin,
    source_location where, covered_place place, std::span<cudaGraphNode_t const> claimed_after,
    lease_log::room& spare) {
  std::lock_guard const lock(mutex_);
  auto const found = entries_.find(graph);
  if (found == entries_.end() || !is_it(found->second, id)) return nullptr;  // it was destroyed
  return found->second.leases.add(spare.empty() ? spare_leases_ : spare, origin, where, place,
                                  claimed_after);
}

lease_log::room graph_registry::room_for_lease(std::uint64_t id, cudaGraph_t graph) {
  lease_log::room its;
  {
    std::lock_guard const lock(mutex_);
    entry const* const found = find(graph, id);
    if (found != nullptr && found->leases.has_room()) return its;
    if (lease_log::take(spare_leases_, its)) return its;
  }
  return lease_log::make_room();
}

lease_spans graph_registry::leases_of(cudaGraph_t graph) const {
  lease_spans all;
  std::lock_guard const lock(mutex_);
  entry const* const found = find(graph);
  if (found == nullptr) return all;
  all = found->copied_leases;
  found->leases.for_each([&](std::shared_ptr<group_lease> each) {
    each->is_copied.store(true, std::memory_order_relaxed);  // see there
    lease_span& its = all.emplace_back();
    its.claimed_after.assign(each->claimed_after.begin(), each->claimed_after.end());
    its.lease = std::move(each);
  });
  return all;
}

void graph_registry::note_outliving(entry const& ended) noexcept {
  for (lease_span const& each : ended.copied_leases) each.lease->note_end_of_capture();
  ended.leases.for_each([](auto const& each) { each->note_end_of_capture(); });
}

void graph_registry::report_outliving(std::uint64_t id, cudaGraph_t graph) noexcept {
  struct outliving_lease {
    std::shared_ptr<group_lease> lease;
    deleter_core* core;  // the graph's set keeps it
    std::string group;
  };
  try {
    std::vector<outliving_lease> told;
    {
      std::lock_guard const lock(mutex_);
      entry const* const found = id == 0 ? nullptr : find(graph, id);
      if (found == nullptr) return;
      auto const tell = [&](std::shared_ptr<group_lease> each) {
        if (each->state() != lease_state::lives) return;
        auto const set = std::ranges::find_if(found->sets, [&](reference_set const* of) {
          return &of->core() == &each->origin->core && of->order()->group == &each->origin->group;
        });
        if (set == found->sets.end()) return;
        told.push_back({std::move(each), &(*set)->core(), (*set)->order()->group->options.label});
      };
      for (lease_span const& each : found->copied_leases) tell(each.lease);
      found->leases.for_each(tell);
      note_outliving(*found);
    }
    for (auto const& [lease, core, group] : told) {
      core->report(usage_error("capture",
                               "the capture ends before " + name_of(*lease) +
                                   ", of the sharing group \"" + group +
                                   "\": another graph's launch may overwrite its contents",
                               "use claim_kept, or release the lease in the capture"));
    }
  } catch (std::bad_alloc const&) {
    // No memory for the text; sharing_stats::outliving counts it.
  }
}

std::string name_of(group_lease const& lease) {
  return "a lease of the pool \"" + lease.origin->pool + "\"" +
         detail::line_text(" (claimed at ", lease.where, ")");
}

}  // namespace escrow::inline v0_2
