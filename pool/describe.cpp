// Statistics of pools, the holders of slots, and both in words.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <iterator>
#include <mutex>
#include <string>
#include <utility>

#include "escrow/internal/json.hpp"
#include "scratch_state.hpp"
#include "slot_pool_state.hpp"

namespace escrow::inline v0_1 {

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
                  {"returned", stats.returned}});
}

std::string describe(holder const& which) {
  bool const is_dated = which.since != std::chrono::steady_clock::time_point{};
  std::string text;
  if (which.waits_for != nullptr) {
    std::array<char, 32> handle{};
    static_cast<void>(
        std::snprintf(handle.data(), handle.size(), "%p", static_cast<void*>(which.waits_for)));
    text = std::string("stream ") + handle.data();
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
  if (which.where.line() != 0) {
    text += std::string(", since the claim at ") + which.where.file_name() + ":" +
            std::to_string(which.where.line());
  }
  if (which.waits_for != nullptr) {
    text += " until the pool or its claimer is given it outside of captures";
  }
  return text;
}

pool_stats slot_pool::stats() const noexcept {
  state& in = *state_;
  pool_stats now{
      .in_graphs = in.reuse.slots_held(),
      .slots_peak = in.slots_peak.load(std::memory_order_relaxed),
      .grown = in.grown.load(std::memory_order_relaxed),
      .stream_waits = in.stream_waits.load(std::memory_order_relaxed),
      .host_waits = in.host_waits.load(std::memory_order_relaxed),
      .edges_added = in.edges_added.load(std::memory_order_relaxed),
  };
  std::size_t elsewhere = now.in_graphs;
  {
    std::lock_guard const lock(in.deferred_mutex);
    for (slot const* each = in.deferred; each != nullptr; each = each->newer_) {
      ++now.deferred;
      if (!each->may_be_in_graphs_ || !in.reuse.is_held(*each)) ++elsewhere;
    }
  }
  free_lists::counts const free = in.free.count();
  now.idle = free.listed;
  now.hits = free.newest_taken;
  {
    std::lock_guard const lock(in.locals_mutex);
    for (local_slots const& each : in.locals) {
      now.unrecorded += each.idle();
      now.hits += each.taken();
    }
  }
  now.idle += now.unrecorded;
  elsewhere += now.idle;
  // Last: a slot that is destroyed meanwhile must not look like a lease.
  now.slots = in.slots.load(std::memory_order_relaxed);
  now.leased = now.slots - std::min(now.slots, elsewhere);
  return now;
}

std::vector<holder> slot_pool::holders() const {
  state const& in = *state_;
  std::vector<holder> result = in.reuse.holders(label());
  auto const add_stream = [&](cudaStream_t stream, std::size_t slots) {
    auto const same = std::ranges::find(result, stream, &holder::waits_for);
    if (same != result.end()) {
      same->slots += slots;
    } else {
      result.push_back({.label = label(), .slots = slots, .where = {}, .waits_for = stream});
    }
  };
  {
    std::lock_guard const lock(in.deferred_mutex);
    for (slot const* each = in.deferred; each != nullptr; each = each->newer_) {
      add_stream(each->unrecorded_.front().handle, 1);
    }
  }
  {
    std::lock_guard const lock(in.locals_mutex);
    for (local_slots const& each : in.locals) {
      if (each.idle() != 0) add_stream(each.of_stream.handle, each.idle());
    }
  }
  std::size_t leased = stats().leased;
  {
    std::lock_guard const lock(in.leases_mutex);
    for (slot const* each : in.leases) {  // the oldest first
      auto const& [where, since] = each->note_;
      result.push_back(
          {.label = label(), .slots = 1, .since = since, .where = where, .is_lease = true});
      if (!in.reuse.is_held(*each)) leased -= std::min<std::size_t>(leased, 1);
    }
  }
  if (leased != 0) {
    result.push_back({.label = label(), .slots = leased, .where = {}, .is_lease = true});
  }
  return result;
}

void slot_pool::state::add_lease(slot& leased) noexcept {
  std::lock_guard const lock(leases_mutex);
  leases.push_back(&leased);
}

void slot_pool::state::remove_lease(slot& ended) noexcept {
  std::lock_guard const lock(leases_mutex);
  remove_from(leases, ended);
}

std::string slot_pool::state::describe_exhaustion(char const* call) const {
  pool_stats const now = owner.stats();
  bool const is_full = now.slots >= slots_max;
  std::string text = std::string(call) + ": all " + std::to_string(now.slots) + " slots of \"" +
                     options.label + "\" are out (" +
                     (is_full ? "slots_max " + std::to_string(slots_max)
                              : std::string("the limit in bytes leaves no room for another")) +
                     ")";
  if (now.idle != now.unrecorded) {
    text += "; " + std::to_string(now.idle - std::min(now.idle, now.unrecorded)) +
            " are free but still in use by the GPU";
  }
  std::size_t named = 0;
  for (holder const& each : owner.holders()) {
    if (++named > 16) break;  // longer texts are not read
    text += "; " + escrow::describe(each);
  }
  if (!options.track_leases && now.leased != 0) text += " (track_leases names their lines)";
  if (now.in_graphs != 0 && !options.group) text += " (graphs can share slots: sharing_group)";
  return text + "; raise slots_max, release earlier, or allow a wait with host_wait_max";
}

std::string slot_pool::describe() const {
  pool_options const& options = state_->options;
  std::string text = "pool \"" + options.label + "\" on device " + std::to_string(options.device) +
                     ", slots_max " + std::to_string(state_->slots_max) + ": " + to_json(stats());
  for (holder const& each : holders()) text += "\n  " + escrow::describe(each);
  return text;
}

scratch_stats scratch_pool::state::stats() const noexcept {
  scratch_stats now{.bytes = reserved.load(std::memory_order_relaxed),
                    .bytes_peak = peak.load(std::memory_order_relaxed),
                    .returned = returned.load(std::memory_order_relaxed)};
  for_each([&now](size_class& each) {
    pool_stats const its = slots_of(each).stats();
    now.grown += its.grown;
    now.bytes_idle += its.idle * each.bytes;
    now.bytes_unrecorded += its.unrecorded * each.bytes;
    now.bytes_in_graphs += its.in_graphs * each.bytes;
    if (its.slots > its.idle + its.in_graphs) {
      now.bytes_in_use += (its.slots - its.idle - its.in_graphs) * each.bytes;
    }
  });
  return now;
}

std::vector<holder> scratch_pool::state::holders() const {
  std::vector<holder> result;
  for_each([&result](size_class& each) {
    std::ranges::move(slots_of(each).holders(), std::back_inserter(result));
  });
  return result;
}

std::string scratch_pool::state::describe_claim(std::size_t bytes, source_location where,
                                                std::string const& named) const {
  scratch_stats const now = stats();
  std::string text =
      "claimed at " + std::string(where.file_name()) + ":" + std::to_string(where.line()) + ": " +
      std::to_string(bytes) + " bytes of \"" + label_of(block_bytes(bytes)) + "\"; \"" +
      options.label + "\" has " + std::to_string(now.bytes) + " bytes: leases hold " +
      std::to_string(now.bytes_in_use) + ", graphs hold " + std::to_string(now.bytes_in_graphs) +
      ", work may still run on " + std::to_string(now.bytes_idle) + " free ones";
  if (policy.bytes_max != scratch_policy{}.bytes_max) {
    text += "; scratch_policy::bytes_max is " + std::to_string(policy.bytes_max);
  }
  std::size_t count = 0;
  for (holder const& each : holders()) {
    if (each.label == named) continue;
    if (++count > 16) break;  // longer texts are not read
    text += "; \"" + each.label + "\": " + escrow::describe(each);
  }
  return text;
}

std::vector<holder> scratch_pool::holders() const {
  return state_->holders();
}

scratch_stats scratch_pool::stats() const noexcept {
  return state_->stats();
}

std::string scratch_pool::describe() const {
  pool_options const& options = state_->options;
  std::string text = "scratch pool \"" + options.label + "\" on device " +
                     std::to_string(options.device) + ": " + to_json(stats());
  for (holder const& each : holders()) {
    text += "\n  \"" + each.label + "\": " + escrow::describe(each);
  }
  return text;
}

}  // namespace escrow::inline v0_1
