// The layout of an arena.
#include "arena.hpp"

#include <algorithm>
#include <limits>
#include <unordered_set>

#include "escrow/core/error.hpp"
#include "escrow/internal/device.hpp"
#include "escrow/internal/launch_order.hpp"

namespace escrow::inline v0_1 {

namespace {

using stamps = std::vector<std::uint64_t>;

bool contains(stamps const& all, std::uint64_t asked) {
  return std::ranges::find(all, asked) != all.end();
}

void add_node(graph_nodes& to, cudaGraphNode_t node) {
  if (std::ranges::find(to, node) == to.end()) to.push_back(node);
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
    group.memory = std::make_shared<arena>(device);
  }
  return std::static_pointer_cast<arena>(group.memory);
}

std::shared_ptr<arena> arena::known(group_order& group) {
  std::lock_guard const lock(group.memory_mutex);
  return std::static_pointer_cast<arena>(group.memory);
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
  std::erase(taken_, &claimed);
  claimed.its_state = arena_place::state::released;
}

arena_place* arena::claim_last(request const& asked, capture_frontier const& frontier) {
  auto const ended = frontier.all().first(frontier.ended);
  auto const is_at_end = [&](cudaGraphNode_t node) {
    return std::ranges::find(ended, node) != ended.end();
  };
  std::lock_guard const lock(mutex_);
  auto const its = graphs_.find(asked.graph);
  if (its == graphs_.end() || asked.is_apart) return nullptr;
  auto const found = std::ranges::find_if(its->second, [&](arena_place const& each) {
    return each.its_state == arena_place::state::released && each.of == asked.of &&
           each.end - each.begin == asked.bytes &&
           std::ranges::all_of(each.released_after, is_at_end);
  });
  if (found == its->second.end()) return nullptr;
  auto const is_in_the_way = [&](arena_place const& each) {
    return &each != &*found && each.its_state == arena_place::state::released &&
           each.overlaps(*found);
  };
  if (std::ranges::any_of(its->second, is_in_the_way)) return nullptr;
  auto const is_over_it = [&](arena_place const* each) { return each->overlaps(*found); };
  if (std::ranges::any_of(taken_, is_over_it)) return nullptr;
  taken_.push_back(&*found);
  found->its_state = arena_place::state::taken;
  return &*found;
}

arena_place& arena::claim_best(request const& asked, capture_frontier const& frontier,
                               graph_nodes& earlier) {
  // A longer walk is worth its time only if the graph would need more memory.
  constexpr std::size_t near = 64;
  walk_back walk(frontier, released_in(asked.graph));
  bool is_over = walk.go_on(near);
  while (true) {
    {
      std::lock_guard const lock(mutex_);
      places& its = graphs_[asked.graph];
      std::size_t const begin = choose(asked, walk.found());
      std::size_t const end = begin + asked.bytes;
      if (is_over || end <= extent_of(its)) {
        arena_place made{.begin = begin, .end = end, .graph = asked.graph, .of = asked.of};
        arena_place* found = nullptr;
        for (arena_place& each : its) {
          if (each.its_state != arena_place::state::released || !each.overlaps(made)) continue;
          for (cudaGraphNode_t const node : each.released_after) add_node(earlier, node);
          if (each.begin == begin && each.end == end && each.of == asked.of) found = &each;
        }
        taken_.reserve(taken_.size() + 1);
        if (found == nullptr) found = &its.emplace_back(std::move(made));
        found->its_state = arena_place::state::taken;
        taken_.push_back(found);
        return *found;
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
  for (arena_place const& each : found->second) {
    if (each.its_state != arena_place::state::released) continue;
    all.push_back({each.stamp, each.released_after, each.released_edges});
  }
  return all;
}

std::size_t arena::choose(request const& asked, stamps const& before) const {
  std::vector<std::pair<std::size_t, std::size_t>> used;
  if (asked.is_apart) used.emplace_back(0, extent(asked.graph));
  for (arena_place const* const each : taken_) used.emplace_back(each->begin, each->end);
  if (auto const its = graphs_.find(asked.graph); its != graphs_.end()) {
    for (arena_place const& each : its->second) {
      bool const is_known = contains(before, each.stamp);
      if (each.its_state != arena_place::state::released || is_known) continue;
      used.emplace_back(each.begin, each.end);
    }
  }
  std::ranges::sort(used);
  std::size_t end = 0;
  std::size_t best = 0;
  std::size_t best_gap = std::numeric_limits<std::size_t>::max();
  for (auto const& [its_begin, its_end] : used) {
    std::size_t const gap = its_begin > end ? its_begin - end : 0;
    if (gap >= asked.bytes && gap < best_gap) {
      best = end;
      best_gap = gap;
    }
    end = std::max(end, its_end);
  }
  return best_gap != std::numeric_limits<std::size_t>::max() ? best : end;
}

std::size_t arena::extent_of(places const& its) noexcept {
  std::size_t most = 0;
  for (arena_place const& each : its) most = std::max(most, each.end);
  return most;
}

std::size_t arena::extent(std::uint64_t without) const noexcept {
  std::size_t most = 0;
  for (auto const& [graph, its] : graphs_) {
    if (graph != without) most = std::max(most, extent_of(its));
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
  std::erase(taken_, &place);
  // What comes after this release comes after theirs: the claim did.
  for (arena_place& each : graphs_.at(place.graph)) {
    if (each.its_state != arena_place::state::released) continue;
    if (each.begin < place.begin || each.end > place.end) continue;
    each.its_state = arena_place::state::covered;
  }
  place.its_state = arena_place::state::released;
}

void arena::keep(arena_place& place) noexcept {
  std::lock_guard const lock(mutex_);
  if (place.its_state == arena_place::state::taken) place.its_state = arena_place::state::kept;
}

bool arena::may_go(arena_place& place, bool is_its_graph) noexcept {
  std::lock_guard const lock(mutex_);
  if (is_its_graph && place.its_state == arena_place::state::released) {
    place.its_state = arena_place::state::covered;
  }
  return place.its_state != arena_place::state::taken;
}

void arena::remove(arena_place& place) noexcept {
  std::lock_guard const lock(mutex_);
  std::erase(taken_, &place);
  auto const its = graphs_.find(place.graph);
  its->second.remove_if([&place](arena_place const& each) { return &each == &place; });
  if (its->second.empty()) graphs_.erase(its);
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
