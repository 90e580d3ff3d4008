// SPDX-License-Identifier: Apache-2.0
// Which memory of an arena a claim takes, and what is kept of the users before.
#include <algorithm>
#include <iterator>
#include <limits>
#include <new>
#include <utility>

#include "arena.hpp"

namespace escrow::inline v0_2 {

namespace {

constexpr std::size_t everything = std::numeric_limits<std::size_t>::max();

void add_nodes(graph_nodes& to, graph_nodes const& more) {
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
  for (released_range const& each : in.released) {
    if (!std::ranges::binary_search(before, each.stamp)) unknown.emplace_back(each.begin, each.end);
  }
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
  auto const is_covered = [&](auto const& each) { return each.overlaps(begin, end); };
  std::vector<released_range> left;  // of what is covered in part
  for (released_range const& each : in.released) {
    if (!is_covered(each)) continue;
    add_nodes(got.after, each.after);
    for (auto const& [its_begin, its_end] :
         {std::pair{each.begin, begin}, std::pair{end, each.end}}) {
      if (its_begin >= its_end) continue;
      released_range part = each;
      part.begin = its_begin;
      part.end = its_end;
      part.place = nullptr;
      left.push_back(std::move(part));
    }
  }
  reserve(in.released, in.released.size() + left.size() + in.places.size() + 2);
  make_room(in);
  got.place = &place_at(in, asked, begin);
  // From here on nothing throws.
  for (released_range const& each : in.released) {
    if (each.place != nullptr && is_covered(each)) each.place->has_range = false;
  }
  std::erase_if(in.released, is_covered);
  std::ranges::move(left, std::back_inserter(in.released));
  mark_taken(*got.place);
  return got;
}

arena_place& arena::place_at(layout& in, request const& asked, std::size_t begin) {
  std::size_t const end = begin + asked.bytes;
  arena_place* found = nullptr;
  for (arena_place* const each : in.idle) {
    if (each->of != asked.of) continue;
    bool const is_there = each->begin == begin && each->end == end;
    // Others stay where they are for their branch's next claim.
    if (each->has_range && !is_there && (each->begin >= end || begin >= each->end)) continue;
    found = each;
    if (is_there) break;
  }
  if (found == nullptr) {
    arena_place& made = in.places.emplace_back(begin, end, asked.graph, asked.of);
    made.self = std::prev(in.places.end());
    found = &made;
  } else {
    remove_idle(in, *found);
  }
  found->begin = begin;
  found->end = end;
  found->where = asked.where;
  // Relaxed: a number.
  std::size_t const reach = found->reach.load(std::memory_order_relaxed);
  found->reach.store(std::max(reach, end), std::memory_order_relaxed);
  in.extent = std::max(in.extent, end);
  return *found;
}

void arena::make_more_room(layout& in) {
  reserve(in.released, in.released.size() + in.places.size() + 2);
  reserve(in.idle, in.places.size() + 1);
  reserve(taken_, taken_.size() + 1);
}

arena_place& arena::renew(arena_place& place) {
  std::lock_guard const lock(mutex_);
  layout& in = graphs_.at(place.graph);
  make_room(in);
  arena_place& made = in.places.emplace_back(place.begin, place.end, place.graph, place.of);
  made.self = std::prev(in.places.end());
  made.where = place.where;
  place.its_state = arena_place::state::gone;
  untake(place);
  mark_taken(made);
  return made;
}

void arena::give_up(claimed const& its) noexcept {
  std::lock_guard const lock(mutex_);
  arena_place& place = *its.place;
  layout& in = graphs_.at(place.graph);
  untake(place);
  put_back(in, place.begin, place.end, its, place.held != nullptr ? &place : nullptr);
  if (place.held == nullptr) {
    in.extent = 0;
    for (arena_place const& each : in.places) {
      if (&each != &place)
        in.extent = std::max(in.extent, each.reach.load(std::memory_order_relaxed));
    }
    return end(place);
  }
  place.its_state = arena_place::state::idle;
  in.idle.push_back(&place);  // take() has made room
}

void arena::put_back(std::uint64_t graph, std::size_t begin, std::size_t end,
                     claimed const& its) noexcept {
  std::lock_guard const lock(mutex_);
  auto const found = graphs_.find(graph);
  if (found != graphs_.end()) put_back(found->second, begin, end, its, nullptr);
}

void arena::put_back(layout& in, std::size_t begin, std::size_t end, claimed const& its,
                     arena_place* place) noexcept {
  try {
    add_released(in, begin, end, graph_nodes(its.after), its.edges, place);
  } catch (std::bad_alloc const&) {  // nobody knows the users before: nothing is claimed there
    in.behind = std::max(in.behind, end);
  }
}

void arena::release(arena_place& place, graph_nodes after, std::uint64_t edges) noexcept {
  std::lock_guard const lock(mutex_);
  layout& in = graphs_.at(place.graph);
  untake(place);
  add_released(in, place.begin, place.end, std::move(after), edges, &place);
  place.its_state = arena_place::state::idle;
  in.idle.push_back(&place);
}

void arena::keep(arena_place& place) noexcept {
  std::lock_guard const lock(mutex_);
  if (place.its_state == arena_place::state::taken) place.its_state = arena_place::state::kept;
}

void arena::add_released(layout& in, std::size_t begin, std::size_t end, graph_nodes after,
                         std::uint64_t edges, arena_place* place) {
  if (in.is_of_scope) return;
  cudaGraphNode_t const first = after.empty() ? nullptr : after.front();
  in.released.push_back({.begin = begin,
                         .end = end,
                         .first_after = first,
                         .after = std::move(after),
                         .edges = edges,
                         .stamp = ++in.last_stamp,
                         .place = place});
  if (place != nullptr) place->has_range = true;
}

void arena::remove_idle(layout& in, arena_place const& place) noexcept {
  auto const at = std::ranges::find(in.idle, &place);
  *at = in.idle.back();
  in.idle.pop_back();
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

bool arena::is_taken(std::size_t begin, std::size_t end) const noexcept {
  auto const at = std::ranges::lower_bound(taken_, end, {}, &arena_place::begin);
  return at != taken_.begin() && (*std::prev(at))->end > begin;
}

bool arena::may_go(arena_place& place, bool is_its_graph) noexcept {
  std::lock_guard const lock(mutex_);
  if (is_its_graph && place.its_state == arena_place::state::idle) {
    layout& in = graphs_.at(place.graph);
    remove_idle(in, place);
    place.its_state = arena_place::state::gone;
    for (released_range& each : in.released) {
      if (each.place == &place) each.place = nullptr;
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
