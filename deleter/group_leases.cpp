// Leases of sharing groups, by graph: noted by claims, copied with the graph, told of at the end of
// their capture.
#include "escrow/internal/group_lease.hpp"

#include <algorithm>
#include <new>

#include "escrow/core/error.hpp"
#include "escrow/internal/deleter_core.hpp"
#include "escrow/internal/reference_set.hpp"

namespace escrow::inline v0_1 {

void graph_registry::note_leases(std::uint64_t id, cudaGraph_t graph,
                                 lease_spans claimed) noexcept {
  std::lock_guard const lock(mutex_);
  if (find(graph, id) == nullptr) return;  // it was destroyed meanwhile
  lease_spans& its = entries_.find(graph)->second.leases;
  its.splice(its.end(), claimed);
}

std::vector<lease_span> graph_registry::leases_of(cudaGraph_t graph) const {
  std::lock_guard const lock(mutex_);
  entry const* const found = find(graph);
  if (found == nullptr) return {};
  return {found->leases.begin(), found->leases.end()};
}

void graph_registry::note_outliving(entry const& ended) noexcept {
  for (lease_span const& each : ended.leases) each.lease->note_end_of_capture();
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
      for (lease_span const& each : found->leases) {
        group_lease& its = *each.lease;
        if (its.state() != lease_state::lives) continue;
        auto const set = std::ranges::find_if(found->sets, [&its](reference_set const* of) {
          return &of->core() == &its.core && of->order()->group == &its.group;
        });
        if (set == found->sets.end()) continue;
        told.push_back({each.lease, &(*set)->core(), (*set)->order()->group->options.label});
      }
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
  std::string text = "a lease of the pool \"" + lease.pool + "\"";
  if (lease.where.line() == 0) return text;
  return text + " (claimed at " + lease.where.file_name() + ":" +
         std::to_string(lease.where.line()) + ")";
}

}  // namespace escrow::inline v0_1
