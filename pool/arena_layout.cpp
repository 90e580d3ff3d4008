// SPDX-License-Identifier: Apache-2.0
// Which memory of an arena a claim takes, and what is kept of the users before.
#include <algorithm>
#include <iterator>
#include <limits>
#include <span>
#include <utility>

#include "arena.hpp"

namespace escrow::inline v0_2 {

namespace {

constexpr std::size_t everything = std::numeric_limits<std::size_t>::max();

void add_nodes(graph_nodes& to, std::span<cudaGraphNode_t const> more) {
  for (cudaGraphNode_t const node : more) {
    if (std::ranges::find(to, node) == to.end()) to.push_back(node);
  }
}

// Room for so many, without a new allocation for each.
template <class Vector>
void reserve(Vector& of, std::size_t count) {
  if (of.capacity() < count) of.reserve(std::max(count, 2 * of.capacity()));
}

}  // namespace

std::size_t arena::choose(request const& asked, layout const& in, stamps const& before) const {
  using range = std::pair<std::size_t, std::size_t>;
  std::vector<range> unknown;  // released, but not before the claim
  if (in.behind != 0) unknown.emplace_back(0, in.behind);
  if (in.claims < asked.first_claims) unknown.emplace_back(0, in.claims_end);
  in.for_each_released([&](layout::released_range const& each) {
    if (!std::ranges::binary_search(before, each.stamp)) unknown.emplace_back(each.begin, each.end);
  });
  std::ranges::sort(unknown);
  std::size_t end = 0;
  std::size_t best = 0;
  std::size_t best_gap = everything;
  auto const note_gap = [&](std::size_t next) {
    std::size_t const gap = next > end ? next - end : 0;
    if (gap >= asked.bytes && gap < best_gap) {
      best = end;
      best_gap = gap;
    }
  };
  auto const note = [&](std::size_t its_begin, std::size_t its_end) {
    note_gap(its_begin);
    end = std::max(end, its_end);
  };
  auto next = unknown.begin();
  for (arena_place const* const each : taken_) {
    for (; next != unknown.end() && next->first < each->begin; ++next)
      note(next->first, next->second);
    note(each->begin, each->end);
  }
  for (; next != unknown.end(); ++next) note(next->first, next->second);
  // Small ones do not break up what larger ones leave, while they need no more pages behind it.
  constexpr std::size_t page = std::size_t{2} << 20;
  note_gap((in.extent + page - 1) / page * page);
  return best_gap != everything ? best : end;
}

arena::claimed arena::take(layout& in, request const& asked, std::size_t begin) {
  std::size_t const end = begin + asked.bytes;
  claimed got;
  std::vector<layout::part> left;  // of what is covered in part
  in.for_each_released([&](layout::released_range const& each) {
    if (!each.overlaps(begin, end)) return;
    add_nodes(got.after, each.after);
    for (auto const& [its_begin, its_end] :
         {std::pair{each.begin, begin}, std::pair{end, each.end}}) {
      if (its_begin >= its_end) continue;
      left.push_back({its_begin, its_end, graph_nodes(each.after.begin(), each.after.end()),
                      each.edges, each.stamp});
    }
  });
  reserve(in.parts, in.parts.size() + left.size() + in.places.size() + 1);
  make_room(in);
  got.place = &place_at(in, asked, begin);
  // From here on nothing throws. If its slot had a range, it was covered, too.
  for (slot* next = in.released.oldest(); next != nullptr;) {
    slot const& each = *std::exchange(next, next->newer_);
    if (layout::range_of(each).overlaps(begin, end)) remove_range(*each.place_);
  }
  std::erase_if(in.parts, [&](auto const& each) { return each.range().overlaps(begin, end); });
  std::ranges::move(left, std::back_inserter(in.parts));
  mark_taken(*got.place);
  return got;
}

arena_place& arena::place_at(layout& in, request const& asked, std::size_t begin) {
  std::size_t const end = begin + asked.bytes;
  arena_place* found = nullptr;
  for (arena_place& each : in.places) {
    if (each.its_state != arena_place::state::idle || each.of != asked.of) continue;
    bool const is_there = each.begin == begin && each.end == end;
    // Others stay where they are for their branch's next claim.
    if (each.has_range && !is_there && (each.begin >= end || begin >= each.end)) continue;
    found = &each;
    if (is_there) break;
  }
  if (found == nullptr) {
    arena_place& made = in.places.emplace_back(begin, end, asked.graph, in, asked.of);
    made.self = std::prev(in.places.end());
    found = &made;
  }
  found->begin = begin;
  found->end = end;
  found->where = asked.where;
  found->used = asked.used;
  // Relaxed: a number.
  std::size_t const reach = found->reach.load(std::memory_order_relaxed);
  found->reach.store(std::max(reach, end), std::memory_order_relaxed);
  in.extent = std::max(in.extent, end);
  ++in.claims;
  in.claims_end = std::max(in.claims_end, end);
  return *found;
}

void arena::make_room(layout& in) {
  reserve(in.parts, in.parts.size() + in.places.size() + 1);
  make_room_in_taken();
}

void arena::make_room_in_taken() {
  if (taken_.size() == taken_.capacity()) [[unlikely]]
    reserve(taken_, taken_.size() + 1);
}

arena_place& arena::renew(arena_place& place) {
  layout& in = *place.layout;
  make_room(in);
  arena_place& made = in.places.emplace_back(place.begin, place.end, place.graph, in, place.of);
  made.self = std::prev(in.places.end());
  made.where = place.where;
  made.used = place.used;
  place.its_state = arena_place::state::gone;
  untake(place);
  mark_taken(made);
  return made;
}

void arena::give_up(claimed& its) noexcept {
  arena_place& place = *its.place;
  layout& in = *place.layout;
  untake(place);
  if (place.held == nullptr) {
    add_part(in, place.begin, place.end, its);
    in.extent = 0;
    for (arena_place const& each : in.places) {
      if (&each != &place)
        in.extent = std::max(in.extent, each.reach.load(std::memory_order_relaxed));
    }
    return end(place);
  }
  if (!its.is_leased) {
    place.held->released_after_ = std::move(its.after);
    place.held->released_edges_ = its.edges;
  }
  place.its_state = arena_place::state::idle;
  add_range(place);
}

void arena::put_back(std::uint64_t graph, std::size_t begin, std::size_t end,
                     claimed& its) noexcept {
  std::lock_guard const lock(mutex_);
  auto const found = graphs_.find(graph);
  if (found != graphs_.end()) add_part(found->second, begin, end, its);
}

void arena::release(arena_place& place) noexcept {
  untake(place);
  place.its_state = arena_place::state::idle;
  add_range(place);
}

void arena::add_part(layout& in, std::size_t begin, std::size_t end, claimed& its) noexcept {
  if (in.is_of_scope) return;
  in.parts.push_back({begin, end, std::move(its.after), its.edges, ++in.last_stamp});
}

void arena::add_range(arena_place& place) noexcept {
  layout& in = *place.layout;
  if (in.is_of_scope) return;
  place.stamp = ++in.last_stamp;
  place.has_range = true;
  in.released.add(*place.held);
}

void arena::remove_range(arena_place& place) noexcept {
  place.layout->released.remove(*place.held);
  place.has_range = false;
}

void arena::mark_taken(arena_place& place) noexcept {
  auto const at = std::ranges::upper_bound(taken_, place.begin, {}, &arena_place::begin);
  taken_.insert(at, &place);  // for which there is room
  place.its_state = arena_place::state::taken;
}

void arena::untake(arena_place const& place) noexcept {
  auto const at = std::ranges::lower_bound(taken_, place.begin, {}, &arena_place::begin);
  if (at != taken_.end() && *at == &place) taken_.erase(at);
}

arena_place const* arena::taken_in(std::size_t begin, std::size_t end) const noexcept {
  auto const at = std::ranges::lower_bound(taken_, end, {}, &arena_place::begin);
  return at != taken_.begin() && (*std::prev(at))->end > begin ? *std::prev(at) : nullptr;
}

bool arena::may_go(arena_place& place, bool is_its_graph) noexcept {
  if (is_its_graph && place.its_state == arena_place::state::idle) {
    place.its_state = arena_place::state::gone;
    if (place.has_range) {  // which stays without the slot
      remove_range(place);
      slot& its = *place.held;
      place.layout->parts.push_back({place.begin, place.end, std::move(its.released_after_),
                                     its.released_edges_, place.stamp});
    }
  }
  return place.its_state != arena_place::state::taken;
}

void arena::remove(arena_place& place) noexcept {
  std::lock_guard const lock(mutex_);
  untake(place);
  end(place);
}

void arena::end(arena_place& place) noexcept {
  if (place.graph == 0) {
    rested_.erase(place.self);
    return;
  }
  auto const found = graphs_.find(place.graph);
  found->second.places.erase(place.self);
  if (found->second.places.empty()) graphs_.erase(found);
}

}  // namespace escrow::inline v0_2
