// SPDX-License-Identifier: Apache-2.0
// Statistics of pools, the holders of slots, and both in words.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <iterator>
#include <mutex>
#include <string>

#include "escrow/internal/json.hpp"
#include "escrow/pool/scratch_pool.hpp"
#include "slot_pool_state.hpp"

namespace escrow::inline v0_2 {

std::string to_json(pool_stats const& stats) {
  return json_of({{"slots", stats.slots},
                  {"leased", stats.leased},
                  {"idle", stats.idle},
                  {"in_graphs", stats.in_graphs},
                  {"unrecorded", stats.unrecorded},
                  {"deferred", stats.deferred},
                  {"slots_peak", stats.slots_peak},
                  {"grown", stats.grown},
                  {"hits", stats.hits},
                  {"stream_waits", stats.stream_waits},
                  {"host_waits", stats.host_waits},
                  {"edges_added", stats.edges_added}});
}

std::string to_json(scratch_stats const& stats) {
  return json_of({{"bytes", stats.bytes},
                  {"bytes_in_use", stats.bytes_in_use},
                  {"bytes_idle", stats.bytes_idle},
                  {"bytes_in_graphs", stats.bytes_in_graphs},
                  {"bytes_unrecorded", stats.bytes_unrecorded},
                  {"bytes_peak", stats.bytes_peak},
                  {"grown", stats.grown},
                  {"returned", stats.returned},
                  {"bytes_in_arena", stats.bytes_in_arena},
                  {"bytes_deferred", stats.bytes_deferred},
                  {"bytes_leaked", stats.bytes_leaked}});
}

std::string describe(holder const& which) {
  bool const is_dated = which.since != std::chrono::steady_clock::time_point{};
  std::string text;
  if (which.waits_for != nullptr) {
    text = name_of(which.waits_for);
  } else if (which.is_lease) {
    text = is_dated ? "a lease" : "leases";
  } else if (which.capture_id != 0) {
    text = "capture " + std::to_string(which.capture_id);
  } else {
    text = "a node of a graph built by hand";
  }
  text += (which.is_lease && !is_dated ? " hold " : " holds ") + std::to_string(which.slots);
  if (is_dated) {
    auto const age = std::chrono::duration_cast<std::chrono::milliseconds>(
        std::chrono::steady_clock::now() - which.since);
    text += " for " + std::to_string(age.count()) + " ms";
  }
  text += detail::line_text(", since the claim at ", which.where);
  if (which.waits_for != nullptr) {
    text += " until the next claim or release on it outside of captures, or its claimer's flush()";
  }
  return text;
}

pool_stats slot_pool::state::stats(size_class& of) const noexcept {
  pool_stats now{
      .in_graphs = reuse.slots_held(of),
      .slots_peak = of.slots_peak.load(std::memory_order_relaxed),
      .grown = grown.load(std::memory_order_relaxed),
      .stream_waits = stream_waits.load(std::memory_order_relaxed),
      .host_waits = host_waits.load(std::memory_order_relaxed),
      .edges_added = edges_added.load(std::memory_order_relaxed),
  };
  std::size_t elsewhere = now.in_graphs;
  deferred.for_each([&](slot const& each) {
    if (&each.of_ != &of) return;
    ++now.deferred;
    if (!each.may_be_in_graphs_ || !reuse.is_held(each)) ++elsewhere;
  });
  free_lists::counts const free = of.free.count();
  now.idle = free.listed;
  now.unrecorded = free.uncovered;
  now.hits = free.newest_taken;
  elsewhere += now.idle;
  // Last: a slot that is destroyed meanwhile must not look like a lease.
  now.slots = of.slots.alive();
  now.leased = now.slots - std::min(now.slots, elsewhere);
  return now;
}

pool_stats slot_pool::stats() const noexcept {
  return state_->stats(state_->sizes.smallest);
}

scratch_stats slot_pool::stats_in_bytes() const noexcept {
  state& in = *state_;
  scratch_stats now{.bytes = in.sizes.bytes(),
                    .bytes_peak = in.sizes.bytes_peak(),
                    .grown = in.grown.load(std::memory_order_relaxed),
                    .returned = in.sizes.returned(),
                    .bytes_in_arena = in.in_arena.bytes.load(std::memory_order_relaxed),
                    .bytes_leaked = in.sizes.bytes_leaked()};
  in.sizes.for_each([&](size_class& each) {
    pool_stats const its = in.stats(each);
    std::size_t const of_each = each.bytes_each();
    now.bytes_idle += its.idle * of_each;
    now.bytes_unrecorded += its.unrecorded * of_each;
    now.bytes_in_graphs += its.in_graphs * of_each;
    now.bytes_deferred += its.deferred * of_each;
    if (its.slots > its.idle + its.in_graphs) {
      now.bytes_in_use += (its.slots - its.idle - its.in_graphs) * of_each;
    }
    if (each.bytes == 0) {
      now.bytes = its.slots * of_each + now.bytes_leaked;
      now.bytes_peak = its.slots_peak * of_each;
    }
  });
  return now;
}

std::vector<holder> slot_pool::holders() const {
  std::vector<holder> all;
  state_->sizes.for_each([&](size_class& each) { state_->add_holders(each, all); });
  return all;
}

void slot_pool::state::add_holders(size_class& of, std::vector<holder>& all) const {
  std::vector<holder> its = reuse.holders(of);
  auto const add_stream = [&](cudaStream_t stream, std::size_t count) {
    auto const same = std::ranges::find(its, stream, &holder::waits_for);
    if (same != its.end()) {
      same->slots += count;
    } else {
      its.push_back({.label = of.label, .slots = count, .where = {}, .waits_for = stream});
    }
  };
  deferred.for_each([&](slot const& each) {
    if (&each.of_ == &of) add_stream(each.unrecorded_.front().handle, 1);
  });
  for (auto const& [stream, count] : of.free.uncovered()) add_stream(stream, count);
  std::size_t const places_held = reuse.places_held(of);  // first: see stats()
  auto const its_arena = known_arena();
  std::size_t const idle = places_held + (its_arena ? its_arena->idle_in_scopes(of) : 0);
  std::size_t const places = of.in_arena.alive();
  std::size_t leased = stats(of).leased + places - std::min(places, idle);
  std::lock_guard const lock(leases_mutex);
  for (slot const* each = leases.oldest(); each != nullptr; each = each->newer_) {
    if (&each->of_ != &of) continue;
    auto const& [where, since] = each->note_;
    its.push_back(
        {.label = of.label, .slots = 1, .since = since, .where = where, .is_lease = true});
    if (!reuse.is_held(*each)) leased -= std::min<std::size_t>(leased, 1);
  }
  if (leased != 0) {
    its.push_back({.label = of.label, .slots = leased, .where = {}, .is_lease = true});
  }
  std::ranges::move(its, std::back_inserter(all));
}

std::string slot_pool::describe() const {
  return state_->describe(state_->sizes.smallest, pool_sizes::no_limit);
}

std::string slot_pool::state::describe(size_class const& first, std::size_t holders_max) {
  bool const is_scratch = sizes.smallest.bytes != 0;
  std::string text = is_scratch ? "scratch pool \"" : "pool \"";
  text += options.label + "\" on device " + std::to_string(options.device);
  if (slots_max != pool_sizes::no_limit) text += ", slots_max " + std::to_string(slots_max);
  if (sizes.bytes_max != pool_sizes::no_limit)
    text += ", bytes_max " + std::to_string(sizes.bytes_max);
  text += ": " + (is_scratch ? to_json(owner.stats_in_bytes()) : to_json(owner.stats()));
  std::vector<holder> all = owner.holders();
  std::stable_partition(all.begin(), all.end(),
                        [&](auto const& each) { return each.label == first.label; });
  std::size_t const more = all.size() - std::min(all.size(), holders_max);
  all.resize(all.size() - more);
  for (holder const& each : all) {
    text += "\n  " + (is_scratch ? "\"" + each.label + "\": " : "") + escrow::describe(each);
  }
  if (more != 0) text += "\n  and " + std::to_string(more) + " more: see describe()";
  return text;
}

void pool_exhausted::throw_at(source_location where) const {
  detail::throw_again_at(*this, where);
}

}  // namespace escrow::inline v0_2
