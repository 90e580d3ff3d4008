// The layout of an arena.
#include "arena.hpp"

#include <algorithm>
#include <iterator>
#include <limits>
#include <new>
#include <unordered_set>
#include <utility>

#include "device_store.hpp"
#include "escrow/core/error.hpp"
#include "escrow/internal/device.hpp"
#include "escrow/internal/launch_order.hpp"
#include "escrow/internal/reference_set.hpp"

namespace escrow::inline v0_1 {

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

std::shared_ptr<arena> arena::of(group_order& group, int device) {
  std::lock_guard const lock(group.memory_mutex);
  if (group.memory == nullptr) {
    if (!address_range::is_possible_on(device)) return nullptr;
    group.memory = std::make_shared<arena>(group, device);
    device_store::global().add(device, group.memory);
  }
  return std::static_pointer_cast<arena>(group.memory);
}

std::shared_ptr<arena> arena::known(group_order& group) {
  return std::static_pointer_cast<arena>(group.known_memory());
}

arena::claimed arena::claim(request const& asked, capture_frontier const& frontier) {
  claimed got = claim_last(asked, frontier);
  if (got.place != nullptr) {
    try {
      if (fingerprint_of(got.after) == got.edges) return got;
    } catch (...) {
      give_up(got);
      throw;
    }
    give_up(got);
  }
  return claim_best(asked, frontier);
}

arena::claimed arena::claim_last(request const& asked, capture_frontier const& frontier) {
  auto const ended = frontier.all().first(frontier.ended);
  auto const is_at_end = [&](cudaGraphNode_t node) {
    return std::ranges::find(ended, node) != ended.end();
  };
  claimed got;
  std::lock_guard const lock(mutex_);
  auto const found = graphs_.find(asked.graph);
  if (found == graphs_.end()) return got;
  layout& in = found->second;
  for (released_range& each : in.released) {
    arena_place* const place = each.place;
    if (place == nullptr || place->of != asked.of || each.end - each.begin != asked.bytes) continue;
    if (!std::ranges::all_of(each.after, is_at_end) || is_taken(each.begin, each.end)) continue;
    reserve(taken_, taken_.size() + 1);
    got = {.place = place, .after = std::move(each.after), .edges = each.edges};
    if (&each != &in.released.back()) each = std::move(in.released.back());
    in.released.pop_back();
    remove_idle(in, *place);
    mark_taken(*place);
    break;
  }
  return got;
}

arena::claimed arena::claim_best(request const& asked, capture_frontier const& frontier) {
  // A longer walk is worth its time only if the graph would need more memory.
  constexpr std::size_t near = 64;
  auto const [behind, is_recaptured] =
      graph_registry::global().begin_claim(asked.graph, asked.handle, group_);
  if (is_recaptured) forget_graph(asked.graph);
  released_walk walk = walk_of(asked.graph, frontier);
  bool is_over = walk.go_on(near);
  claimed got;
  while (got.place == nullptr) {
    {
      std::lock_guard const lock(mutex_);
      layout none;
      none.behind = behind;
      auto const known = graphs_.find(asked.graph);
      layout& in = known == graphs_.end() ? none : known->second;
      in.behind = std::max(in.behind, behind);
      std::size_t const begin = choose(asked, in, walk.found());
      if (is_over || begin + asked.bytes <= in.extent) {
        layout& its = graphs_.try_emplace(asked.graph, std::move(none)).first->second;
        try {
          if (is_over && walk.is_any_missing()) note_walk(its, frontier, walk.found());
          got = take(its, asked, begin);
        } catch (...) {
          if (its.places.empty()) graphs_.erase(asked.graph);
          throw;
        }
        break;
      }
    }
    is_over = walk.go_on(everything);
  }
  try {
    got.edges = fingerprint_of(got.after);
  } catch (...) {
    give_up(got);
    throw;
  }
  return got;
}

released_walk arena::walk_of(std::uint64_t graph, capture_frontier const& frontier) {
  std::vector<released_walk::sought_range> sought;
  released_walk::known_nodes known;
  {
    std::lock_guard const lock(mutex_);
    auto const found = graphs_.find(graph);
    if (found != graphs_.end()) {
      layout const& in = found->second;
      for (released_range const& each : in.released) {
        sought.push_back({each.after, each.edges, each.stamp, each.after.size()});
      }
      if (in.walked_at == in.last_stamp) known = in.walked;
    }
  }
  return {frontier, std::move(sought), std::move(known)};
}

void arena::note_walk(layout& in, capture_frontier const& frontier, stamps const& found) {
  auto const from = frontier.all().first(frontier.ended);
  if (from.size() != 1) return;  // what they find together, none of them finds
  constexpr std::size_t most = 64;
  if (in.walked_at != in.last_stamp || in.walked.size() >= most) in.walked.clear();
  in.walked_at = in.last_stamp;
  in.walked.emplace_back(from.front(), std::make_shared<stamps const>(found));
}

// Its work of before is in it no more. Execs of it may have that; their launches are ordered.
void arena::forget_graph(std::uint64_t graph) noexcept {
  std::lock_guard const lock(mutex_);
  auto const found = graphs_.find(graph);
  if (found == graphs_.end()) return;
  layout& in = found->second;
  for (arena_place* const each : in.idle) each->its_state = arena_place::state::gone;
  in.idle.clear();
  in.released.clear();
  in.walked.clear();
}

std::size_t arena::choose(request const& asked, layout const& in, stamps const& before) const {
  using range = std::pair<std::size_t, std::size_t>;
  std::unordered_set<std::uint64_t> const found(before.begin(), before.end());
  std::vector<range> unknown;  // released, but not before the claim
  if (in.behind != 0) unknown.emplace_back(0, in.behind);
  for (released_range const& each : in.released) {
    if (!found.contains(each.stamp)) unknown.emplace_back(each.begin, each.end);
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
  reserve(in.released, in.released.size() + left.size() + 2);  // also for its own release
  make_room(in);
  got.place = &place_at(in, asked, begin, got.has_moved);
  // From here on nothing throws.
  std::erase_if(in.released, is_covered);
  std::ranges::move(left, std::back_inserter(in.released));
  mark_taken(*got.place);
  return got;
}

arena_place& arena::place_at(layout& in, request const& asked, std::size_t begin, bool& has_moved) {
  std::size_t const end = begin + asked.bytes;
  arena_place* found = nullptr;
  for (arena_place* const each : in.idle) {
    if (each->of != asked.of) continue;
    found = each;
    if (each->begin == begin && each->end == end) break;
  }
  if (found == nullptr) {
    arena_place& made = in.places.emplace_back(begin, end, asked.graph, asked.of);
    made.self = std::prev(in.places.end());
    found = &made;
  } else {
    has_moved = found->begin != begin || found->end != end;
    remove_idle(in, *found);
    if (has_moved) {
      for (released_range& each : in.released) {
        if (each.place == found) each.place = nullptr;
      }
    }
  }
  found->begin = begin;
  found->end = end;
  // Relaxed: a number.
  std::size_t const reach = found->reach.load(std::memory_order_relaxed);
  found->reach.store(std::max(reach, end), std::memory_order_relaxed);
  in.extent = std::max(in.extent, end);
  return *found;
}

void arena::make_room(layout& in) {
  reserve(in.released, in.released.size() + 1);
  reserve(in.idle, in.places.size() + 1);
  reserve(taken_, taken_.size() + 1);
}

arena_place& arena::renew(arena_place& place) {
  std::lock_guard const lock(mutex_);
  layout& in = graphs_.at(place.graph);
  make_room(in);
  arena_place& made = in.places.emplace_back(place.begin, place.end, place.graph, place.of);
  made.self = std::prev(in.places.end());
  made.reach.store(made.end, std::memory_order_relaxed);  // relaxed: a number
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
  if (place.held == nullptr) return end(place);
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
    in.released.push_back({.begin = begin,
                           .end = end,
                           .after = its.after,
                           .edges = its.edges,
                           .stamp = ++in.last_stamp,
                           .place = place});
  } catch (std::bad_alloc const&) {  // nobody knows the users before: nothing is claimed there
    in.behind = std::max(in.behind, end);
  }
}

void arena::map(arena_place const& place) {
  {
    // What trim() takes away it has noted under this lock, and the place is in the layout.
    std::lock_guard const lock(mutex_);
    if (place.end <= mapped_.load(std::memory_order_relaxed)) return;
  }
  std::lock_guard const mapping(mapping_);
  range_.map(place.end);
  std::lock_guard const lock(mutex_);
  mapped_.store(range_.mapped(), std::memory_order_relaxed);
}

void arena::release(arena_place& place, std::span<cudaGraphNode_t const> after,
                    std::uint64_t edges) {
  graph_nodes its(after.begin(), after.end());
  std::lock_guard const lock(mutex_);
  layout& in = graphs_.at(place.graph);
  make_room(in);
  untake(place);
  add_released(in, place, std::move(its), edges);
  place.its_state = arena_place::state::idle;
  in.idle.push_back(&place);
}

void arena::keep(arena_place& place) noexcept {
  std::lock_guard const lock(mutex_);
  if (place.its_state == arena_place::state::taken) place.its_state = arena_place::state::kept;
}

void arena::add_released(layout& in, arena_place& place, graph_nodes after,
                         std::uint64_t edges) noexcept {
  in.released.push_back({.begin = place.begin,
                         .end = place.end,
                         .after = std::move(after),
                         .edges = edges,
                         .stamp = ++in.last_stamp,
                         .place = place.held != nullptr ? &place : nullptr});
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
  auto const found = graphs_.find(place.graph);
  found->second.places.erase(place.self);
  if (found->second.places.empty()) graphs_.erase(found);
}

std::size_t arena::extent() const noexcept {
  std::size_t most = 0;
  for (auto const& [graph, its] : graphs_) most = std::max(most, its.extent);
  return most;
}

std::size_t arena::trim() noexcept {
  std::lock_guard const mapping(mapping_);
  std::size_t keep = 0;
  {
    std::lock_guard const lock(mutex_);
    keep = range_.mapped_for(extent());
    mapped_.store(std::min(bytes(), keep), std::memory_order_relaxed);
  }
  std::size_t const freed = range_.unmap_behind(keep);
  std::lock_guard const lock(mutex_);
  mapped_.store(range_.mapped(), std::memory_order_relaxed);
  return freed;
}

}  // namespace escrow::inline v0_1
