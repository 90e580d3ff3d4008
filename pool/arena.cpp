// SPDX-License-Identifier: Apache-2.0
// Claims of graphs in an arena, and its pages.
#include "arena.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "device_store.hpp"
#include "escrow/detail/shared_count.hpp"
#include "escrow/internal/device.hpp"
#include "escrow/internal/graph_registry.hpp"
#include "escrow/internal/launch_order.hpp"

namespace escrow::inline v0_2 {

std::shared_ptr<arena> arena::of(group_order& group, int device) {
  std::lock_guard const lock(group.memory_mutex);
  if (group.memory == nullptr) {
    if (!address_range::is_possible_on(device)) return nullptr;
    group.memory = make_apart<arena>(group, device);
    device_store::global().add(device, group.memory);
  }
  return std::static_pointer_cast<arena>(group.memory);
}

std::shared_ptr<arena> arena::known(group_order& group) {
  return std::static_pointer_cast<arena>(group.known_memory());
}

arena_place* arena::claim_last(request const& asked, capture_frontier const& frontier) {
  auto const found = graphs_.find(asked.graph);
  if (found == graphs_.end() || is_closed_) return nullptr;
  layout const& in = found->second;
  if (in.claims < asked.first_claims) return nullptr;
  auto const ended = frontier.all().first(frontier.ended);
  auto const is_at_end = [&](cudaGraphNode_t node) {
    return std::ranges::find(ended, node) != ended.end();
  };
  auto const suits = [&](slot const& released) {
    arena_place const& its = *released.place_;
    return its.bytes() == asked.bytes && its.of == asked.of &&
           std::ranges::all_of(released.released_after_, is_at_end) &&
           !is_taken(its.begin, its.end);
  };
  // Better than any other: that lease may go on.
  auto const is_of_line = [&](slot const& released) {
    return released.place_->where == asked.where;
  };
  // Often the stream has released the newest one; branches in turn find theirs at the other end.
  slot const* best = in.released.newest();
  if (best != nullptr && !(is_of_line(*best) && suits(*best))) {
    best = nullptr;
    for (slot const* each = in.released.oldest(); each != nullptr; each = each->newer_) {
      bool const is_better = best == nullptr || is_of_line(*each);
      if (!is_better || !suits(*each)) continue;
      best = each;
      if (is_of_line(*each)) break;
    }
  }
  if (best == nullptr) return nullptr;
  make_room_in_taken();
  arena_place& place = *best->place_;
  remove_range(place);
  place.where = asked.where;
  place.used = asked.used;
  mark_taken(place);
  return &place;
}

arena::claimed arena::claim_best(request const& asked, capture_frontier const& frontier) {
  // A longer walk is worth its time only if the graph would need more memory.
  constexpr std::size_t near = 64;
  auto const [behind, generation] =
      graph_registry::global().begin_claim(asked.graph, asked.handle, group_);
  forget_graph(asked.graph, generation);
  released_walk walk = walk_of(asked, frontier);
  bool is_over = walk.go_on(near);
  released_walk::known_node whole{};  // of a walk through all of the graph
  claimed got;
  while (got.place == nullptr) {
    // What several nodes find together, none of them finds.
    if (is_over && walk.is_any_missing() && frontier.ended == 1) {
      cudaGraphNode_t const from = frontier.all().front();
      whole = {from, fingerprint_of({&from, 1}), std::make_shared<stamps const>(walk.found())};
    }
    {
      std::lock_guard const lock(mutex_);
      if (is_closed_) return {};
      layout none;
      none.behind = behind;
      none.generation = generation;
      auto const known = graphs_.find(asked.graph);
      layout& in = known == graphs_.end() ? none : known->second;
      in.behind = std::max(in.behind, behind);
      std::size_t const begin = choose(asked, in, walk.found());
      if (is_over || begin + asked.bytes <= in.extent) {
        layout& its = graphs_.try_emplace(asked.graph, std::move(none)).first->second;
        try {
          if (whole.found != nullptr) note_walk(its, std::move(whole));
          got = take(its, asked, begin);
        } catch (...) {
          if (its.places.empty()) graphs_.erase(asked.graph);
          throw;
        }
        break;
      }
    }
    is_over = walk.go_on(std::numeric_limits<std::size_t>::max());
  }
  return got;
}

released_walk arena::walk_of(request const& asked, capture_frontier const& frontier) {
  std::vector<released_walk::sought_range> sought;
  released_walk::known_nodes known;
  {
    std::lock_guard const lock(mutex_);
    auto const found = graphs_.find(asked.graph);
    if (found != graphs_.end()) {
      layout const& in = found->second;
      in.for_each_released([&](layout::released_range const& each) {
        sought.push_back({few_nodes(each.after.begin(), each.after.end()), each.edges, each.stamp,
                          each.after.size()});
      });
      if (in.walked_at == in.last_stamp) known = in.walked;
    }
  }
  return {asked.handle, frontier, std::move(sought), std::move(known)};
}

void arena::note_walk(layout& in, released_walk::known_node walked) {
  constexpr std::size_t most = 64;
  if (in.walked_at != in.last_stamp || in.walked.size() >= most) in.walked.clear();
  in.walked_at = in.last_stamp;
  in.walked.push_back(std::move(walked));
}

// Its work of before is in it no more. Execs of it may have that; their launches are ordered.
void arena::forget_graph(std::uint64_t graph, std::uint64_t generation) noexcept {
  std::lock_guard const lock(mutex_);
  auto const found = graphs_.find(graph);
  if (found == graphs_.end()) return;
  layout& in = found->second;
  if (std::exchange(in.generation, generation) == generation) return;
  for (arena_place& each : in.places) {
    if (each.its_state != arena_place::state::idle) continue;
    each.its_state = arena_place::state::gone;
    if (each.has_range) remove_range(each);
  }
  in.parts.clear();
  in.walked.clear();
}

void arena::map(arena_place const& place) {
  {
    // What trim() takes away it has noted under this lock, and the place is in the layout.
    std::lock_guard const lock(mutex_);
    if (place.end <= mapped_.load(std::memory_order_relaxed)) return;
  }
  device_scope const current(device_);
  relaxed_capture_scope const relaxed;
  std::lock_guard const mapping(mapping_);
  range_.map(place.end);
  std::lock_guard const lock(mutex_);
  mapped_.store(range_.mapped(), std::memory_order_relaxed);
}

std::size_t arena::extent() const noexcept {
  std::size_t most = 0;
  for (auto const& [graph, its] : graphs_) most = std::max(most, its.extent);
  for (arena_place const& each : rested_)
    most = std::max(most, each.reach.load(std::memory_order_relaxed));
  return most;
}

std::size_t arena::trim() noexcept {
  end_rests(nullptr);
  std::lock_guard const mapping(mapping_);
  std::size_t keep = 0;
  {
    std::lock_guard const lock(mutex_);
    if (is_closed_) return 0;
    keep = range_.mapped_for(extent());
    mapped_.store(std::min(bytes(), keep), std::memory_order_relaxed);
  }
  std::size_t const freed = range_.unmap_behind(keep);
  std::lock_guard const lock(mutex_);
  mapped_.store(range_.mapped(), std::memory_order_relaxed);
  return freed;
}

}  // namespace escrow::inline v0_2
