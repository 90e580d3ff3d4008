// The layout of an arena.
#include "arena.hpp"

#include <algorithm>
#include <iterator>
#include <limits>
#include <unordered_set>

#include "escrow/core/error.hpp"
#include "escrow/internal/device.hpp"
#include "escrow/internal/launch_order.hpp"
#include "escrow/internal/reference_set.hpp"

namespace escrow::inline v0_1 {

namespace {

using stamps = std::vector<std::uint64_t>;

bool contains(stamps const& all, std::uint64_t asked) {
  return std::ranges::find(all, asked) != all.end();
}

void add_node(graph_nodes& to, cudaGraphNode_t node) {
  if (std::ranges::find(to, node) == to.end()) to.push_back(node);
}

// Room for so many, without a new allocation for each.
template <class Vector>
void make_room(Vector& of, std::size_t count) {
  if (of.capacity() < count) of.reserve(std::max(count, 2 * of.capacity()));
}

// A walk from a frontier back, nearest nodes first, for what was released before it.
template <class Released>
class walk_back {
 public:
  walk_back(capture_frontier const& from, std::vector<Released> sought)
      : sought_(std::move(sought)) {
    for (Released& each : sought_) {
      if (each.after.empty()) note_if_found(each);
    }
    for (cudaGraphNode_t const node : from.all().first(from.ended)) add(node);
  }
  // Goes on until `nodes_max` were looked at, or all is found. True if it is over.
  bool go_on(std::size_t nodes_max) {
    for (; missing() && walked_ < open_.size(); ++walked_) {
      if (walked_ == nodes_max) return false;
      cudaGraphNode_t const node = open_[walked_];
      for_each_dependency(node, [&](cudaGraphNode_t earlier, cudaGraphEdgeData const& edge) {
        if (!seen_.contains(earlier) && ends_after(node, edge)) add(earlier);
      });
    }
    return true;
  }
  [[nodiscard]] stamps const& found() const noexcept { return found_; }

 private:
  [[nodiscard]] bool missing() const noexcept { return found_.size() != sought_.size() - changed_; }
  void add(cudaGraphNode_t node) {
    seen_.insert(node);
    open_.push_back(node);
    for (Released& each : sought_) {
      if (std::ranges::find(each.after, node) != each.after.end()) note_if_found(each);
    }
  }
  void note_if_found(Released const& each) {
    auto const is_seen = [this](cudaGraphNode_t node) { return seen_.contains(node); };
    if (contains(found_, each.stamp) || !std::ranges::all_of(each.after, is_seen)) return;
    // Handles of destroyed nodes are used again.
    if (fingerprint_of(each.after) != each.edges) {
      ++changed_;
    } else {
      found_.push_back(each.stamp);
    }
  }

  std::vector<Released> sought_;
  std::unordered_set<cudaGraphNode_t> seen_;
  std::vector<cudaGraphNode_t> open_;
  std::size_t walked_ = 0;
  std::size_t changed_ = 0;
  stamps found_;
};

}  // namespace

std::shared_ptr<arena> arena::of(group_order& group, int device) {
  std::lock_guard const lock(group.memory_mutex);
  if (group.memory == nullptr) {
    if (!address_range::is_possible_on(device)) return nullptr;
    group.memory = std::make_shared<arena>(group, device);
  }
  return std::static_pointer_cast<arena>(group.memory);
}

std::shared_ptr<arena> arena::known(group_order& group) {
  return std::static_pointer_cast<arena>(group.known_memory());
}

arena_place& arena::claim(request const& asked, capture_frontier const& frontier,
                          earlier_users& earlier) {
  arena_place* found = claim_last(asked, frontier);
  try {
    if (found != nullptr && fingerprint_of(found->released_after) == found->released_edges) {
      earlier.are_known_to_slot = true;
      return *found;
    }
    if (found != nullptr) give_up(*std::exchange(found, nullptr));
    found = &claim_best(asked, frontier, earlier.nodes);
    earlier.edges = fingerprint_of(earlier.nodes);
    return *found;
  } catch (...) {
    if (found != nullptr) give_up(*found);
    throw;
  }
}

void arena::give_up(arena_place& claimed) noexcept {
  if (claimed.held == nullptr) return remove(claimed);
  std::lock_guard const lock(mutex_);
  untake(claimed);
  list_released(graphs_.at(claimed.graph), claimed);
}

arena_place* arena::claim_last(request const& asked, capture_frontier const& frontier) {
  auto const ended = frontier.all().first(frontier.ended);
  auto const is_at_end = [&](cudaGraphNode_t node) {
    return std::ranges::find(ended, node) != ended.end();
  };
  std::lock_guard const lock(mutex_);
  auto const found = graphs_.find(asked.graph);
  if (found == graphs_.end() || found->second.is_apart) return nullptr;
  layout& in = found->second;
  for (layout::candidate& each : in.released) {
    arena_place& place = *each.its;
    if (each.after != nullptr && !is_at_end(each.after)) continue;
    if (place.of != asked.of || place.end - place.begin != asked.bytes) continue;
    if (!std::ranges::all_of(place.released_after, is_at_end)) continue;
    auto const is_in_the_way = [&place](layout::candidate const& other) {
      return other.its != &place && other.its->overlaps(place);
    };
    if (in.has_overlaps && std::ranges::any_of(in.released, is_in_the_way)) return nullptr;
    if (is_taken(place)) return nullptr;
    mark_taken(place);
    each = in.released.back();
    in.released.pop_back();
    return &place;
  }
  return nullptr;
}

arena_place& arena::claim_best(request const& asked, capture_frontier const& frontier,
                               graph_nodes& earlier) {
  // A longer walk is worth its time only if the graph would need more memory.
  constexpr std::size_t near = 64;
  bool const is_apart = graph_registry::global().begin_claim(asked.graph, asked.handle, group_);
  walk_back walk(frontier, released_in(asked.graph));
  bool is_over = walk.go_on(near);
  while (true) {
    {
      std::lock_guard const lock(mutex_);
      layout const none{.is_apart = is_apart};
      auto const known = graphs_.find(asked.graph);
      layout const& in = known == graphs_.end() ? none : known->second;
      std::size_t const begin = choose(asked, in, walk.found());
      std::size_t const end = begin + asked.bytes;
      if (is_over || end <= in.extent) {
        places made;
        made.push_back({.begin = begin, .end = end, .graph = asked.graph, .of = asked.of});
        return take(graphs_.try_emplace(asked.graph, none).first->second, made, earlier);
      }
    }
    is_over = walk.go_on(std::numeric_limits<std::size_t>::max());
  }
}

std::vector<arena::released_place> arena::released_in(std::uint64_t graph) {
  std::vector<released_place> all;
  std::lock_guard const lock(mutex_);
  auto const found = graphs_.find(graph);
  if (found == graphs_.end()) return all;
  for (auto const& each : found->second.released) {
    all.push_back({each.its->stamp, each.its->released_after, each.its->released_edges});
  }
  return all;
}

std::size_t arena::choose(request const& asked, layout const& in, stamps const& before) const {
  using range = std::pair<std::size_t, std::size_t>;
  std::vector<range> unknown;  // released, but not before the claim
  if (in.is_apart) unknown.emplace_back(0, extent(asked.graph));
  for (auto const& each : in.released) {
    if (!contains(before, each.its->stamp)) unknown.emplace_back(each.its->begin, each.its->end);
  }
  std::ranges::sort(unknown);
  std::size_t end = 0;
  std::size_t best = 0;
  std::size_t best_gap = std::numeric_limits<std::size_t>::max();
  auto const note = [&](range const& used) {
    std::size_t const gap = used.first > end ? used.first - end : 0;
    if (gap >= asked.bytes && gap < best_gap) {
      best = end;
      best_gap = gap;
    }
    end = std::max(end, used.second);
  };
  auto next = unknown.begin();
  for (arena_place const* const each : taken_) {
    for (; next != unknown.end() && next->first < each->begin; ++next) note(*next);
    note({each->begin, each->end});
  }
  for (; next != unknown.end(); ++next) note(*next);
  return best_gap != std::numeric_limits<std::size_t>::max() ? best : end;
}

arena_place& arena::take(layout& in, places& made, graph_nodes& earlier) {
  arena_place* found = &made.front();
  try {
    for (auto const& [after, place] : in.released) {
      if (!place->overlaps(made.front())) continue;
      for (cudaGraphNode_t const node : place->released_after) add_node(earlier, node);
      if (place->is_as(made.front())) found = place;
    }
    make_room(in.released, in.all.size() + 1);  // for its release
    make_room(taken_, taken_.size() + 1);
  } catch (...) {
    if (in.all.empty()) graphs_.erase(made.front().graph);
    throw;
  }
  if (found == &made.front()) {
    found->self = made.begin();
    in.all.splice(in.all.end(), made);
    in.extent = std::max(in.extent, found->end);
  }
  // What comes after its release comes after those that it covers: this claim does.
  std::erase_if(in.released, [&](auto const& each) {
    if (!found->overlaps(*each.its)) return false;
    if (each.its != found && !found->contains(*each.its)) {
      in.has_overlaps = true;
      return false;
    }
    each.its->its_state = arena_place::state::covered;
    return true;
  });
  mark_taken(*found);
  return *found;
}

void arena::mark_taken(arena_place& place) {
  auto const at = std::ranges::upper_bound(taken_, place.begin, {}, &arena_place::begin);
  taken_.insert(at, &place);
  place.its_state = arena_place::state::taken;
}

void arena::untake(arena_place const& place) noexcept {
  auto const at = std::ranges::lower_bound(taken_, place.begin, {}, &arena_place::begin);
  if (at != taken_.end() && *at == &place) taken_.erase(at);
}

bool arena::is_taken(arena_place const& place) const noexcept {
  auto const at = std::ranges::lower_bound(taken_, place.end, {}, &arena_place::begin);
  return at != taken_.begin() && (*std::prev(at))->end > place.begin;
}

void arena::list_released(layout& in, arena_place& place) noexcept {
  cudaGraphNode_t const after =
      place.released_after.empty() ? nullptr : place.released_after.front();
  in.released.push_back({after, &place});  // take() has reserved it
  place.its_state = arena_place::state::released;
}

void arena::unlist(layout& in, arena_place const& place) noexcept {
  std::erase_if(in.released, [&place](auto const& each) { return each.its == &place; });
}

std::size_t arena::extent(std::uint64_t without) const noexcept {
  std::size_t most = 0;
  for (auto const& [graph, its] : graphs_) {
    if (graph != without) most = std::max(most, its.extent);
  }
  return most;
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
  std::lock_guard const lock(mutex_);
  place.released_after.assign(after.begin(), after.end());
  place.released_edges = edges;
  place.stamp = ++last_stamp_;
  untake(place);
  list_released(graphs_.at(place.graph), place);
}

void arena::keep(arena_place& place) noexcept {
  std::lock_guard const lock(mutex_);
  if (place.its_state == arena_place::state::taken) place.its_state = arena_place::state::kept;
}

bool arena::may_go(arena_place& place, bool is_its_graph) noexcept {
  std::lock_guard const lock(mutex_);
  if (is_its_graph && place.its_state == arena_place::state::released) {
    unlist(graphs_.at(place.graph), place);
    place.its_state = arena_place::state::gone;
  }
  return place.its_state != arena_place::state::taken;
}

void arena::remove(arena_place& place) noexcept {
  std::lock_guard const lock(mutex_);
  untake(place);
  auto const found = graphs_.find(place.graph);
  layout& in = found->second;
  unlist(in, place);
  bool const is_in_vain = place.its_state == arena_place::state::taken;
  if (is_in_vain) in.has_overlaps = true;
  places doomed;
  doomed.splice(doomed.begin(), in.all, place.self);
  if (in.all.empty()) {
    graphs_.erase(found);
  } else if (is_in_vain) {  // what it covered is as before
    in.extent = 0;
    for (arena_place& each : in.all) {
      in.extent = std::max(in.extent, each.end);
      bool const is_covered = each.its_state == arena_place::state::covered;
      if (is_covered && place.contains(each)) list_released(in, each);
    }
  }
}

std::size_t arena::trim() noexcept {
  std::lock_guard const mapping(mapping_);
  std::size_t keep = 0;
  {
    std::lock_guard const lock(mutex_);
    keep = range_.mapped_for(extent(0));
    mapped_.store(std::min(bytes(), keep), std::memory_order_relaxed);
  }
  std::size_t const freed = range_.unmap_behind(keep);
  std::lock_guard const lock(mutex_);
  mapped_.store(range_.mapped(), std::memory_order_relaxed);
  return freed;
}

}  // namespace escrow::inline v0_1
