// SPDX-License-Identifier: Apache-2.0
// Claims of captures from the arena of a sharing group.
#include <algorithm>
#include <limits>
#include <mutex>
#include <utility>

#include "arena.hpp"
#include "claim_search.hpp"
#include "escrow/core/capture.hpp"
#include "escrow/core/error.hpp"
#include "escrow/internal/device.hpp"
#include "escrow/internal/launch_order.hpp"
#include "escrow/internal/parked_group.hpp"

namespace escrow::inline v0_2 {

arena& slot_pool::arena_of() const noexcept {
  return state_->in_arena.its();
}

arena* slot_pool::state::ask_for_arena() {
  return in_arena.known
      .get([this](auto& place) {
        device_scope const current(options.device);
        relaxed_capture_scope const relaxed;
        place = arena::of(*options.group->order(), options.device);
      })
      .get();
}

arena::claimed capture_reuse::claim_last(arena& in, arena::request const& asked,
                                         capture_frontier const& frontier) {
  arena::claimed got;
  std::lock_guard const lock(mutex_);
  got.place = in.claim_last(asked, frontier);
  if (got.place == nullptr) return got;
  slot& its = *got.place->held;
  got.is_as_released = true;
  got.is_leased = may_lease(its, asked.graph) && got.place->is_slot_here();
  if (got.is_leased) {
    begin_lease(its);
  } else {
    got.after = std::move(its.released_after_);
    got.edges = its.released_edges_;
  }
  return got;
}

bool capture_reuse::are_users_unchanged(arena::claimed const& got) {
  return got.is_leased ? is_unchanged(*got.place->held) : fingerprint_of(got.after) == got.edges;
}

bool capture_reuse::may_lease(slot const& held, std::uint64_t id) noexcept {
  return held.reusable_in_ == id && held.claimed_with_->may_be_reused();
}

void capture_reuse::begin_lease(slot& held) noexcept {
  held.is_reused_ = !held.released_after_.empty();
  held.is_leased_ = true;
  held.captures_ended_ = held.claimed_with_->captures_ended();
}

bool capture_reuse::lease_in_arena(slot& held, std::uint64_t id, arena::claimed& got) noexcept {
  std::lock_guard const lock(mutex_);
  // Of a graph that was recaptured, or whose references were released meanwhile.
  if (!may_lease(held, id)) return false;
  held.released_after_.swap(got.after);
  held.released_edges_ = got.edges;
  begin_lease(held);
  return true;
}

slot* capture_reuse::give_up(arena& in, arena::claimed& got) noexcept {
  std::lock_guard const lock(mutex_);
  slot* const its = got.place->held;
  in.give_up(got);
  if (its == nullptr) return nullptr;
  bool const was_left = std::exchange(its->is_left_, false);
  bool const is_left = std::exchange(its->is_leased_, false) && its->held_by_.empty();
  if (!was_left && !is_left) return nullptr;
  static_cast<void>(arena::may_go(*its->place_, true));
  return its;
}

slot* capture_reuse::renew(arena& in, arena::claimed& got) {
  std::lock_guard const lock(mutex_);
  slot& its = *got.place->held;
  got.place = &in.renew(*got.place);
  return std::exchange(its.is_left_, false) ? &its : nullptr;
}

arena::request slot_pool::claim_search::request_of(std::uint64_t graph) const noexcept {
  constexpr std::size_t alignment = 256;
  std::size_t const bytes = std::max<std::size_t>(asked.bytes, 1);
  return {.bytes = (bytes + alignment - 1) / alignment * alignment + arena::guard_bytes(),
          .graph = graph,
          .handle = capture.graph,
          .of = &of,
          .where = asked.where,
          .used = asked.used,
          .first_claims = reused_late(bytes)};
}

void slot_pool::claim_search::require_unparked(arena::claimed const& got) const {
  if (got.place == nullptr) refuse_parked(asked.call, *in.options.group->order());
}

void slot_pool::claim_search::give_up(arena::claimed& got) noexcept {
  slot* const left = in.reuse.give_up(in.in_arena.its(), got);
  if (left != nullptr) left->leave_graphs();
}

arena::claimed slot_pool::claim_search::claim_in_arena() {
  arena& its = in.in_arena.its();
  arena::request const request = request_of(capture.id);
  arena::claimed got = in.reuse.claim_last(its, request, frontier);
  try {
    if (got.place != nullptr && capture_reuse::are_users_unchanged(got)) return got;
    if (got.place != nullptr) give_up(got);
    got = {};
    got = its.claim_best(request, frontier);
    if (got.place != nullptr) got.edges = fingerprint_of(got.after);
    return got;
  } catch (...) {
    if (got.place != nullptr) give_up(got);
    throw;
  }
}

slot* slot_pool::claim_search::renew_in_arena(arena::claimed& got) {
  try {
    return in.reuse.renew(in.in_arena.its(), got);
  } catch (...) {
    give_up(got);
    throw;
  }
}

slot* slot_pool::claim_search::take_in_arena() {
  if (seen.failure != nullptr || !seen.is_first) {
    in.owner.trim(0, true);  // idle blocks may be the memory that is missing
    if (seen.failure != nullptr) trim_all(in.options.device, &in.owner);
    seen.failure = nullptr;
  }
  arena::claimed got = claim_in_arena();
  require_unparked(got);
  if (got.is_leased) return got.place->held;
  slot* found = slot_at(got);
  if (found == nullptr) return nullptr;
  if (!found->may_be_in_graphs_) {
    give_from_arena(*found, got);
  } else if (in.reuse.lease_in_arena(*found, capture.id, got)) {
    if (!got.is_as_released) found->last_in_group_.reset();
    return found;
  } else {  // its graph was instantiated or hoisted since, and keeps the slot as it is
    if (slot* const left = renew_in_arena(got)) left->leave_graphs();
    found = slot_at(got);
    if (found == nullptr) return nullptr;
    give_from_arena(*found, got);
  }
  if (in.reuse.lease_in_arena(*found, capture.id, got)) return found;
  in.end_lease(*found);
  throw usage_error(asked.call, "the capture was ended while the call used it",
                    "use a stream on one thread at a time");
}

void slot_pool::claim_search::give_from_arena(slot& made, arena::claimed& got) {
  std::size_t const begin = made.place_->begin;
  std::size_t const end = made.place_->end;
  try {
    give_to_graph(made, true);
  } catch (...) {  // the slot is destroyed
    in.in_arena.its().put_back(capture.id, begin, end, got);
    throw;
  }
}

slot* slot_pool::claim_search::slot_at(arena::claimed& got) {
  arena_place& place = *got.place;
  bool const is_new = place.held == nullptr;
  std::size_t const bytes = place.bytes();
  if (!is_new && place.is_slot_here()) return place.held;  // which is mapped, too
  // It has no room to wait for: a closed pool gets none.
  auto const is_open = [this] { return !in.sizes.is_closed(); };
  constexpr auto no_limit = std::numeric_limits<std::uint32_t>::max();
  if (is_new && of.in_arena.try_add(no_limit, is_open) == 0) {
    give_up(got);
    return nullptr;
  }
  if (is_new) in.references.fetch_add(1, std::memory_order_relaxed);  // relaxed: the owner has one
  seen.reclaimed_before = reclaimed();
  try {
    in.in_arena.its().map(place);
    void* const address = in.in_arena.its().address_of(place);
    if (is_new) {
      place.held = new slot(in.owner, of, in.make, address, bytes - arena::guard_bytes());
      place.held->place_ = &place;
    } else {
      place.held->resource_ = in.make(of, address, bytes - arena::guard_bytes());
    }
    slot& its = *place.held;
    in.in_arena.bytes.fetch_add(bytes - its.bytes_in_arena_, std::memory_order_relaxed);
    its.begin_in_arena_ = place.begin;
    its.bytes_in_arena_ = bytes;
    return &its;
  } catch (...) {
    seen.note_failure();
  }
  if (is_new) {
    in.references.fetch_sub(1, std::memory_order_relaxed);
    of.in_arena.remove();
  }
  give_up(got);
  return nullptr;
}

}  // namespace escrow::inline v0_2
