// SPDX-License-Identifier: Apache-2.0
// Sharing groups: copies, and statistics of what their graphs hold.
#include "escrow/deleter/sharing_group.hpp"

#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "escrow/core/error.hpp"
#include "escrow/internal/graph_registry.hpp"
#include "escrow/internal/json.hpp"
#include "escrow/internal/launch_order.hpp"
#include "escrow/internal/parked_group.hpp"
#include "escrow/internal/reference_set.hpp"

namespace escrow::inline v0_2 {

std::string to_json(sharing_stats const& stats) {
  auto const of_id = [](std::uint64_t id) { return std::to_string(id); };
  return json_of({{"slots", stats.slots},
                  {"bytes", stats.bytes},
                  {"launches", stats.launches},
                  {"stream_waits", stats.stream_waits},
                  {"outliving", stats.outliving},
                  {"is_parked", stats.is_parked ? "true" : "false"},
                  {"unordered", json_array(stats.unordered, of_id)}});
}

void group_busy::throw_at(source_location where) const {
  detail::throw_again_at(*this, where);
}

sharing_group::sharing_group(sharing_options options) : order_(make_group(std::move(options))) {}

// In the library, where a program's ThreadSanitizer does not see the count.
sharing_group::sharing_group(sharing_group const&) noexcept = default;
sharing_group& sharing_group::operator=(sharing_group const& other) noexcept {
  sharing_group copy(other);
  order_.swap(copy.order_);
  return *this;
}
sharing_group::~sharing_group() {
  tell_handed_over(static_cast<launch_order*>(order_.get()));
}

std::vector<graph_registry::noted_claim> graph_registry::claims_in(group_order const& group) const {
  std::vector<noted_claim> all;
  std::lock_guard const lock(mutex_);
  for (auto const& known : entries_) {
    entry const& its = known.second;
    if (its.id == 0) continue;
    auto const add = [&](group_lease const& lease, lease_state now) {
      if (&lease.origin->group != &group) return;
      all.push_back(
          {its.id, lease.place, lease.origin->pool, lease.where, now, lease.claimed_at,
           now == lease_state::released ? lease.released_at.load(std::memory_order_relaxed) : 0});
    };
    // The state first: released_at is written before.
    for (lease_span const& each : its.copied_leases) add(*each.lease, each.state());
    its.leases.for_each([&](auto const& each) { add(*each, each->state()); });
  }
  return all;
}

std::vector<graph_registry::graph_holding> graph_registry::holdings() const {
  std::vector<graph_holding> all;
  std::map<std::pair<std::uint64_t, reference_set const*>, std::vector<reference_set const*>> sets;
  std::lock_guard const lock(mutex_);
  for (reference_set const* const each : sets_) {
    sets[{each->id_, each->id_ == 0 ? each : nullptr}].push_back(each);
  }
  for (auto const& [key, its] : sets) {
    std::vector<reclaimable const*> members;
    std::set<cudaGraph_t> graphs;
    for (reference_set const* const each : its) {
      each->list_members(members);
      graphs.insert(each->graphs_.begin(), each->graphs_.end());
    }
    if (members.empty()) continue;
    std::size_t const of_slots = resource_usage_of(members, false).bytes;
    resource_usage const held = resource_usage_of(std::move(members));
    all.push_back({key.first, held, held.bytes - of_slots, graphs.size()});
  }
  return all;
}

sharing_stats sharing_group::stats() const {
  auto members = graph_registry::global().members_of(*order_);
  sharing_stats now{.slots = members.held.slots,
                    .bytes = members.held.bytes,
                    .unordered = std::move(members.unordered),
                    .outliving = members.outliving};
  if (auto const its = order_->known_memory()) now.bytes += its->bytes();
  now.is_parked = order_->is_parked.load(std::memory_order_relaxed);  // a bool
  // Not under the mutex: a launch has that while it blocks.
  now.launches = order_->launches.load(std::memory_order_relaxed);
  now.stream_waits = order_->stream_waits.load(std::memory_order_relaxed);
  return now;
}

std::string sharing_group::describe() const {
  // Relaxed: only the value matters.
  bool const has_pool = order_->device.load(std::memory_order_relaxed) >= 0;
  return "sharing group \"" + order_->options.label + "\": " + to_json(stats()) +
         (has_pool ? "" : "\n  no pool has it: give it to one as pool_options::group");
}

}  // namespace escrow::inline v0_2
