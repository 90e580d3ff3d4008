// SPDX-License-Identifier: Apache-2.0
// A claim at a limit: one at a time searches, and what the others wait for, and how long.
#include <algorithm>
#include <array>
#include <thread>
#include <utility>

#include "claim_search.hpp"
#include "device_store.hpp"
#include "escrow/internal/deleter_core.hpp"

namespace escrow::inline v0_2 {

slot* slot_pool::claim_search::take_at_limit() {
  bool const needs_room = of.slots.existing() < in.slots_max;
  search_turn const turn(in.turns, needs_room ? of.bytes : 0);
  if (!seen.is_first) seen.failure = nullptr;
  seen.is_out_of_memory = seen.failure != nullptr;
  seen.is_first = seen.is_busy = seen.is_on_its_way = seen.has_moved = false;
  seen.has_turn = turn.is_mine();
  seen.is_turn_taken = waits.may_wait && turn.is_of_another();
  if (seen.is_turn_taken) return nullptr;
  bool const is_of_all = of.bytes != 0 && needs_room;
  std::uint64_t const moves_before = moves(is_of_all);
  if (slot* const found = take()) return found;
  // In this order: what was on its way before has moved afterwards.
  seen.is_on_its_way = of.is_any_on_its_way();
  // Its stream cannot wait for eager work on a slot.
  bool const needs_unused = capture.is_active() || in.kind_of(asked) == claim_kind::for_host;
  seen.is_busy = needs_unused && of.free.lists() != 0;
  bool const would_room_help = may_make_room();
  if (would_room_help) in.sizes.look_for_room(seen);
  in.core.recycle_queued();  // a graph's slot is on its way, too
  seen.has_moved = (would_room_help && !is_of_all) || moves(is_of_all) != moves_before;
  return nullptr;
}

bool slot_pool::claim_search::may_search_again() {
  if (seen.failure != nullptr && !seen.is_out_of_memory) return false;
  constexpr std::size_t repeats_min = 64;  // few slots may have many threads
  if (!seen.is_busy && (seen.has_moved || seen.is_on_its_way) &&
      waits.repeats < std::max(repeats_min, in.sizes.existing(of, of.bytes != 0))) {
    ++waits.repeats;
    std::this_thread::yield();
    return true;
  }
  // A scratch_pool has done that in grow_in_room().
  bool const may_trim = seen.is_out_of_memory && of.bytes == 0;
  if (may_trim && !std::exchange(waits.has_trimmed, true)) {
    trim_all(in.options.device);
    static_cast<void>(device_store::global().trim(in.options.device));
    return true;  // in any case: others may have freed some
  }
  if (seen.is_out_of_memory && wait_for_workers()) return true;
  // Busy free slots become usable in a capture, and make room, without an announced return.
  bool const is_coming = seen.is_busy || seen.is_on_its_way || seen.is_turn_taken;
  auto wait_max = asked.host_wait_max.value_or(in.options.host_wait_max);
  if (!asked.host_wait_max && is_coming) wait_max = std::max(wait_max, in.options.capture_wait_max);
  if (seen.is_out_of_memory && !is_coming) wait_max = {};
  if (waits.may_wait && wait_max > std::chrono::nanoseconds(0)) {
    if (!waits.on_host) {
      waits.on_host.emplace();
      in.host_waits.fetch_add(1, std::memory_order_relaxed);
    }
    if (waits.on_host->go_on(wait_max)) return true;
  }
  // The time is over. What the turn of another claim kept from this one, it searches without it.
  return seen.is_turn_taken && std::exchange(waits.may_wait, false);
}

std::array<deleter_core const*, 2> slot_pool::claim_search::workers() const noexcept {
  // The memory of owners without a deleter of their own is with the process-wide one.
  deleter_core const* const others = deleter_core::global_or_null();
  return {&in.core, others == &in.core ? nullptr : others};
}

std::uint64_t slot_pool::claim_search::reclaimed() const noexcept {
  std::uint64_t sum = 0;
  for (deleter_core const* const each : workers()) sum += each != nullptr ? each->reclaimed() : 0;
  return sum;
}

bool slot_pool::claim_search::wait_for_workers() noexcept {
  if (waits.is_over_for_workers) return false;
  auto const wait_max = std::min(in.options.reclaim_wait_max,
                                 asked.host_wait_max.value_or(in.options.reclaim_wait_max));
  constexpr std::size_t retries_max = 16;  // without a pause
  while (true) {
    auto const may_reclaim = [](deleter_core const* each) {
      return each != nullptr && each->may_reclaim();
    };
    // First: if nothing is left to be reclaimed, all that was is counted.
    bool const is_any_left = std::ranges::any_of(workers(), may_reclaim);
    bool const has_come = reclaimed() != seen.reclaimed_before;
    if (has_come && waits.retries < retries_max) {
      ++waits.retries;
      return true;
    }
    if (!has_come && !is_any_left) return false;
    if (wait_max > std::chrono::nanoseconds(0) && !waits.for_workers) {
      waits.for_workers.emplace();
      in.host_waits.fetch_add(1, std::memory_order_relaxed);
    }
    if (!waits.for_workers || !waits.for_workers->go_on(wait_max)) {
      waits.is_over_for_workers = true;
      // Whether a longer wait might have helped: a wait that the call limits might not.
      seen.was_worker_late =
          !asked.host_wait_max || *asked.host_wait_max > in.options.reclaim_wait_max;
      return waits.for_workers.has_value();  // a last search
    }
    if (has_come) return true;
  }
}

}  // namespace escrow::inline v0_2
