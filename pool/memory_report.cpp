// SPDX-License-Identifier: Apache-2.0
// Who holds the memory of the process, as numbers.
#include "escrow/pool/memory_report.hpp"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "arena.hpp"
#include "device_store.hpp"
#include "escrow/internal/graph_registry.hpp"
#include "escrow/internal/launch_order.hpp"
#include "escrow/internal/parked_group.hpp"
#include "slot_pool_state.hpp"

namespace escrow::inline v0_2 {

namespace {

using layouts = std::map<std::uint64_t, graph_layout>;  // by the id

// What the arena has of all graphs, without an order.
layouts places_of(arena& its) {
  layouts all;
  its.for_each_place([&all](arena_place const& each) {
    // Numbers of scopes are above all ids of captures.
    bool const is_scope = each.graph > std::numeric_limits<std::uint64_t>::max() / 2;
    graph_layout& of = all[is_scope ? 0 : each.graph];
    of.extent = std::max(of.extent, each.reach.load(std::memory_order_relaxed));  // a number
    of.claims.push_back({.begin = each.begin,
                         .end = each.end,
                         .pool = each.of->label,
                         .is_leased = each.its_state == arena_place::state::taken});
  });
  return all;
}

// Numbers the claims and releases of a graph from 0.
void number_steps(std::vector<arena_claim>& claims) {
  std::vector<std::uint64_t> steps;
  for (arena_claim const& each : claims) {
    steps.push_back(*each.claimed);
    if (each.released) steps.push_back(*each.released);
  }
  std::ranges::sort(steps);
  auto const number = [&steps](std::uint64_t of) {
    return static_cast<std::uint64_t>(std::ranges::lower_bound(steps, of) - steps.begin());
  };
  for (arena_claim& each : claims) {
    each.claimed = number(*each.claimed);
    if (each.released) each.released = number(*each.released);
  }
}

// In place of the places of a graph that is known: its claims, which are more, and tell more.
void add_claims(layouts& to, group_order const& group) {
  std::map<std::uint64_t, std::vector<arena_claim>> known;
  for (auto& each : graph_registry::global().claims_in(group)) {
    if (each.place.slot != 0) continue;  // not of the arena
    auto const released =
        each.released_at != 0 ? std::optional(each.released_at) : std::optional<std::uint64_t>();
    known[each.graph].push_back({each.place.begin, each.place.end, std::move(each.pool), each.where,
                                 each.claimed_at, released, is_alive(each.state)});
  }
  for (auto& [id, claims] : known) {
    auto const its = to.find(id);
    if (its == to.end()) continue;  // its places went meanwhile
    number_steps(claims);
    its->second.claims = std::move(claims);
  }
}

group_layout layout_of(group_order& group) {
  group_layout now{.label = group.options.label,
                   .device = group.device.load(std::memory_order_relaxed),
                   .execs = group.execs.load(std::memory_order_relaxed)};
  std::shared_ptr<arena> const its = arena::known(group);
  if (its == nullptr) return now;
  now.bytes = its->bytes();
  now.is_parked = group.is_parked.load(std::memory_order_relaxed);  // a bool
  layouts all = places_of(*its);
  add_claims(all, group);
  for (auto& [id, layout] : all) {
    layout.id = id;
    now.graphs.push_back(std::move(layout));
  }
  return now;
}

}  // namespace

void slot_pool::report_all(memory_report& to) {
  auto const pools = state::all();
  std::vector<std::shared_ptr<group_order>> groups;
  for (auto const& each : pools) {
    state& in = *each;
    pool_memory now{.label = in.options.label,
                    .device = in.options.device,
                    .source = in.source,
                    .is_closed = in.sizes.is_closed(),
                    .bytes = in.owner.stats_in_bytes(),
                    .holders = in.owner.holders()};
    in.sizes.for_each([&](size_class& size) {
      pool_stats const its = in.stats(size);
      now.slots += its.slots + size.in_arena.alive();
      now.slots_waiting += its.deferred + its.unrecorded;
    });
    if (in.options.group) {
      auto const& order = in.options.group->order();
      now.group = order->options.label;
      if (std::ranges::find(groups, order) == groups.end()) groups.push_back(order);
    }
    to.pools.push_back(std::move(now));
  }
  for (auto& each : all_groups()) {  // one keeps its memory when its pools are gone
    if (each->known_memory() == nullptr) continue;
    if (std::ranges::find(groups, each) == groups.end()) groups.push_back(std::move(each));
  }
  for (auto const& each : groups) to.groups.push_back(layout_of(*each));
}

memory_report report_memory() {
  memory_report now;
  slot_pool::report_all(now);
  for (auto const& its : device_store::global().uses()) {
    now.devices.push_back({.device = its.device,
                           .reserved = its.reserved,
                           .reserved_in_use = its.used,
                           .ranges = its.mapped});
  }
  for (group_layout const& each : now.groups) {
    if (each.bytes == 0) continue;
    auto found = std::ranges::find(now.devices, each.device, &device_memory::device);
    if (found == now.devices.end()) {
      found = now.devices.insert(found, {.device = each.device});
    }
    found->arenas += each.bytes;
  }
  graph_registry& registry = graph_registry::global();
  for (auto const& its : registry.holdings()) {
    auto const& [slots, owners, bytes] = its.held;
    now.graphs.push_back({its.id, slots, owners, bytes, its.arena_bytes, its.graphs});
  }
  now.execs = registry.execs.load(std::memory_order_relaxed);
  return now;
}

}  // namespace escrow::inline v0_2
