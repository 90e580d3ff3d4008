// Entries of captures, and the backward walk from a frontier.
#include "capture_reuse.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <span>
#include <utility>

#include "escrow/core/error.hpp"
#include "escrow/detail/cuda12.hpp"
#include "escrow/internal/graph_query.hpp"
#include "escrow/internal/reference_set.hpp"

namespace escrow::inline v0_1 {

namespace {

using nodes = std::vector<cudaGraphNode_t>;

bool contains(std::span<cudaGraphNode_t const> set, cudaGraphNode_t node) {
  return std::find(set.begin(), set.end(), node) != set.end();
}

// Calls `found(node, edge)` for each node that `node` depends on.
template <class Found>
void for_each_dependency(cudaGraphNode_t node, Found found) {
  std::array<cudaGraphNode_t, 16> few{};
  std::array<cudaGraphEdgeData, 16> few_edges{};
  std::size_t count = few.size();
  check(cudaGraphNodeGetDependencies(node, few.data(), few_edges.data(), &count),
        "cudaGraphNodeGetDependencies");
  if (count < few.size()) {
    for (std::size_t i = 0; i < count; ++i) found(few[i], few_edges[i]);
    return;
  }
  check(cudaGraphNodeGetDependencies(node, nullptr, nullptr, &count),
        "cudaGraphNodeGetDependencies");
  nodes all(count);
  std::vector<cudaGraphEdgeData> edges(count);
  check(cudaGraphNodeGetDependencies(node, all.data(), edges.data(), &count),
        "cudaGraphNodeGetDependencies");
  for (std::size_t i = 0; i < count; ++i) found(all[i], edges[i]);
}

// An order-independent hash of the dependencies and edges of all `asked`. Collisions have a chance
// of one in 2^64. Callable on a graph that is being captured.
std::uint64_t fingerprint_of(std::span<cudaGraphNode_t const> asked) {
  auto const mix = [](std::uint64_t value) {  // splitmix64
    value = (value ^ (value >> 30U)) * 0xBF58476D1CE4E5B9U;
    value = (value ^ (value >> 27U)) * 0x94D049BB133111EBU;
    return value ^ (value >> 31U);
  };
  auto const number_of = [](cudaGraphNode_t node) {
    return reinterpret_cast<std::uintptr_t>(node);
  };
  std::uint64_t sum = 0;
  for (cudaGraphNode_t const node : asked) {
    for_each_dependency(node, [&](cudaGraphNode_t earlier, cudaGraphEdgeData const& edge) {
      std::uint64_t const kind = edge.from_port * 256U + edge.type;
      sum += mix(mix(mix(number_of(node)) + number_of(earlier)) + kind);
    });
  }
  return sum;
}

}  // namespace

capture_frontier::capture_frontier(detail::capture_dependencies const& after) {
  for (bool const is_full : {true, false}) {
    for (std::size_t i = 0; i < after.count; ++i) {
      if (is_full_dependency(after.edges[i]) == is_full) nodes.push_back(after.nodes[i]);
    }
    if (is_full) ended = nodes.size();
  }
}

void capture_frontier::merge(capture_frontier const& other) {
  for (cudaGraphNode_t const node : other.nodes) {
    if (!contains(all(), node)) nodes.push_back(node);
  }
}

capture_reuse::entry* capture_reuse::find(std::uint64_t id) noexcept {
  auto const found = entries_.find(id);
  return found == entries_.end() ? nullptr : &found->second;
}

std::size_t capture_reuse::holds_of(slot const& held) noexcept {
  return held.claimed_in_.size() + held.other_holds_;
}

bool capture_reuse::end_lease_now(slot& held, bool is_shared) noexcept {
  held.is_leased_ = false;
  if (holds_of(held) == 0) return true;
  if (!is_shared || !is_in_group_ || held.is_shared_ || held.other_holds_ != 0) return false;
  held.is_shared_ = true;
  held.older_ = std::exchange(shared_, &held);
  if (held.older_ != nullptr) held.older_->newer_ = &held;
  return false;
}

void capture_reuse::unshare(slot& claimed) noexcept {
  if (!std::exchange(claimed.is_shared_, false)) return;
  slot* const older = std::exchange(claimed.older_, nullptr);
  slot* const newer = std::exchange(claimed.newer_, nullptr);
  (newer == nullptr ? shared_ : newer->older_) = older;
  if (older != nullptr) older->newer_ = newer;
}

void capture_reuse::add(slot& held, std::uint64_t id, bool is_claim, source_location where) {
  std::lock_guard const lock(mutex_);
  held.claimed_in_.reserve(held.claimed_in_.size() + 1);
  auto const [found, is_new] = entries_.try_emplace(id);
  if (is_new) {
    found->second.since = std::chrono::steady_clock::now();
    found->second.where = where;
  }
  ++found->second.holds;
  held.is_leased_ = held.may_be_in_graphs_ = true;
  if (holds_of(held) == 0) ++slots_held_;
  if (is_claim) {
    held.claimed_in_.push_back(id);
    held.reusable_in_ = id;
  } else {
    ++held.other_holds_;
  }
}

bool capture_reuse::remove(slot& held, std::uint64_t id, bool is_claim) noexcept {
  std::lock_guard const lock(mutex_);
  auto const found = entries_.find(id);
  if (held.reusable_in_ == id) {
    held.reusable_in_ = 0;
    remove_reusable(found->second, held);
  }
  if (--found->second.holds == 0) entries_.erase(found);
  if (is_claim) {
    std::erase(held.claimed_in_, id);
  } else {
    --held.other_holds_;
  }
  if (holds_of(held) != 0) return false;
  --slots_held_;
  if (held.is_leased_) return false;
  unshare(held);
  return true;
}

void capture_reuse::end_reuse(slot& held, std::uint64_t id) noexcept {
  std::lock_guard const lock(mutex_);
  if (held.reusable_in_ != id) return;
  held.reusable_in_ = 0;
  if (entry* const of = find(id)) remove_reusable(*of, held);
}

bool capture_reuse::is_held(slot const& asked) const noexcept {
  std::lock_guard const lock(mutex_);
  return holds_of(asked) != 0;
}

bool capture_reuse::is_held_in(slot const& claimed, std::uint64_t id) const noexcept {
  std::lock_guard const lock(mutex_);
  return claimed.reusable_in_ == id && !claimed.claimed_with_->is_off_graphs();
}

// After a recapture the slots of its graph are still listed.
bool capture_reuse::may_take(slot const& listed) noexcept {
  return !listed.is_leased_ && !listed.claimed_with_->is_off_graphs();
}

bool capture_reuse::end_lease(slot& held, bool was_shared) noexcept {
  std::lock_guard const lock(mutex_);
  return end_lease_now(held, was_shared);
}

bool capture_reuse::end_lease_in(slot& held, std::uint64_t id,
                                 std::span<cudaGraphNode_t const> after) {
  std::uint64_t const edges = fingerprint_of(after);
  std::lock_guard const lock(mutex_);
  held.released_after_.assign(after.begin(), after.end());
  held.released_edges_ = edges;
  entry* const of = find(id);
  // If graphs that are not ordered with this one hold it too, no claim may reuse it.
  if (of != nullptr && held.other_holds_ == 0 && held.reusable_in_ == id) {
    try {
      if (after.empty()) add_reusable(*of, held, nullptr);
      for (cudaGraphNode_t const node : after) add_reusable(*of, held, node);
    } catch (...) {
      remove_reusable(*of, held);
      throw;
    }
    ++of->offers;
    of->barren.clear();
  }
  held.unrecorded_.clear();  // before the slot can be leased again
  return end_lease_now(held, true);
}

void capture_reuse::add_reusable(entry& of, slot& held, cudaGraphNode_t after) {
  if (spare_count_ == 0) {
    of.reusable.emplace(after, &held);
    return;
  }
  reusable_slots::node_type& spare = spare_[--spare_count_];
  spare.key() = after;
  spare.mapped() = &held;
  of.reusable.insert(std::move(spare));
}

void capture_reuse::remove_reusable(entry& of, slot& held) noexcept {
  auto const remove_at = [&](cudaGraphNode_t node) {
    auto const [begin, end] = of.reusable.equal_range(node);
    auto const place =
        std::find_if(begin, end, [&](auto const& each) { return each.second == &held; });
    if (place == end) return;
    auto removed = of.reusable.extract(place);
    if (spare_count_ < spare_.size()) spare_[spare_count_++] = std::move(removed);
  };
  if (held.released_after_.empty()) return remove_at(nullptr);
  for (cudaGraphNode_t const node : held.released_after_) remove_at(node);
}

template <class Choose, class Check>
slot* capture_reuse::take(std::uint64_t id, Choose choose, Check is_right) {
  while (true) {
    slot* found = nullptr;
    {
      std::lock_guard const lock(mutex_);
      entry const* const of = find(id);
      if (of != nullptr && !of->reusable.empty()) found = choose(of->reusable);
      if (found == nullptr) return nullptr;
      found->is_leased_ = true;
    }
    bool is_taken = false;
    try {
      is_taken = is_right(*found);
    } catch (...) {
      std::lock_guard const lock(mutex_);
      found->is_leased_ = false;
      throw;
    }
    std::lock_guard const lock(mutex_);
    if (entry* const of = find(id)) remove_reusable(*of, *found);
    found->is_leased_ = is_taken;
    if (is_taken) {
      unshare(*found);
      return found;
    }
  }
}

slot* capture_reuse::take_shared(std::uint64_t id) noexcept {
  std::lock_guard const lock(mutex_);
  for (slot* each = shared_; each != nullptr; each = each->older_) {
    if (each->is_leased_ || std::ranges::find(each->claimed_in_, id) != each->claimed_in_.end()) {
      continue;
    }
    each->is_leased_ = true;
    unshare(*each);
    if (entry* const of = find(std::exchange(each->reusable_in_, 0))) remove_reusable(*of, *each);
    return each;
  }
  return nullptr;
}

bool capture_reuse::is_unchanged(slot const& released) {
  return fingerprint_of(released.released_after_) == released.released_edges_;
}

template <class IsBefore>
slot* capture_reuse::newest_at(cudaGraphNode_t node, reusable_slots const& all,
                               IsBefore is_before) {
  slot* newest = nullptr;
  auto const [first, last] = all.equal_range(node);
  for (auto each = first; each != last; ++each) {
    slot* const candidate = each->second;
    if (!may_take(*candidate) || !std::ranges::all_of(candidate->released_after_, is_before)) {
      continue;
    }
    if (newest == nullptr || newest->released_at_ < candidate->released_at_) newest = candidate;
  }
  return newest;
}

slot* capture_reuse::take_before(capture_frontier const& frontier, std::uint64_t id,
                                 std::size_t slots_max) {
  // Most often it is the stream's last one, and a look at the frontier itself is enough.
  std::span<cudaGraphNode_t const> const before = frontier.all().first(frontier.ended);
  auto const is_before = [&](cudaGraphNode_t node) { return contains(before, node); };
  auto const choose = [&](reusable_slots const& all) {
    for (cudaGraphNode_t const node : before) {
      if (slot* const found = newest_at(node, all, is_before)) return found;
    }
    return newest_at(nullptr, all, is_before);
  };
  if (slot* const found = take(id, choose, is_unchanged)) return found;
  return walk_before(frontier, id, slots_max);
}

slot* capture_reuse::walk_before(capture_frontier const& frontier, std::uint64_t id,
                                 std::size_t slots_max) {
  constexpr std::size_t near = 256;
  std::size_t nodes_max = 0;
  std::uint64_t offers = 0;
  {
    std::lock_guard const lock(mutex_);
    entry const* const of = find(id);
    if (of == nullptr || of->reusable.empty()) return nullptr;
    nodes_max = of->holds < slots_max ? std::numeric_limits<std::size_t>::max() : near;
    offers = of->offers;
  }
  // Nodes before the frontier, nearest first. Null: releases after no node.
  auto const ended = static_cast<std::ptrdiff_t>(frontier.ended);
  nodes before(frontier.nodes.begin(), frontier.nodes.begin() + ended);
  before.push_back(nullptr);
  std::unordered_set<cudaGraphNode_t> further;  // those beyond the frontier itself
  auto const is_before = [&](cudaGraphNode_t node) {
    auto const end = before.begin() + ended;
    return std::find(before.begin(), end, node) != end || further.contains(node);
  };
  auto const take_at = [&](cudaGraphNode_t node) {
    auto const choose = [&](reusable_slots const& all) { return newest_at(node, all, is_before); };
    return take(id, choose, is_unchanged);
  };
  auto const is_barren = [&](cudaGraphNode_t node) {
    std::lock_guard const lock(mutex_);
    entry const* const of = find(id);
    return of == nullptr || of->barren.contains(node);
  };

  std::size_t looked = 0;
  for (std::size_t walked = 0; walked < before.size(); ++walked) {
    for (; looked < before.size(); ++looked) {
      if (slot* const found = take_at(before[looked])) return found;
    }
    if (walked == nodes_max) return nullptr;
    cudaGraphNode_t const node = before[walked];
    if (node == nullptr || is_barren(node)) continue;
    for_each_dependency(node, [&](cudaGraphNode_t earlier, cudaGraphEdgeData const& edge) {
      if (is_before(earlier) || !ends_after(node, edge)) return;
      further.insert(earlier);
      before.push_back(earlier);
    });
  }
  std::lock_guard const lock(mutex_);
  entry* const of = find(id);
  if (of == nullptr || of->offers != offers) return nullptr;
  of->barren.insert(before.begin(), before.begin() + ended);
  return nullptr;
}

slot* capture_reuse::take_with_edge(capture_info const& capture, stream_ref stream) {
  auto const choose_oldest = [](reusable_slots const& all) {
    slot* oldest = nullptr;
    for (auto const& [node, candidate] : all) {
      if (!may_take(*candidate)) continue;
      if (oldest == nullptr || candidate->released_at_ < oldest->released_at_) oldest = candidate;
    }
    return oldest;
  };
  return take(capture.id, choose_oldest, [&](slot& found) {
    nodes& after = found.released_after_;
    // Nodes may have been destroyed, if the graph was edited and captured into again.
    nodes const all = nodes_of(capture.graph);
    auto const is_there = [&](cudaGraphNode_t node) { return contains(all, node); };
    if (!std::ranges::all_of(after, is_there) || !is_unchanged(found)) return false;
    check(cudaStreamUpdateCaptureDependencies(stream.get(), after.data(), nullptr, after.size(),
                                              cudaStreamAddCaptureDependencies),
          "cudaStreamUpdateCaptureDependencies");
    return true;
  });
}

std::vector<holder> capture_reuse::holders(std::string const& label) const {
  std::lock_guard const lock(mutex_);
  std::vector<holder> result;
  for (auto const& [id, graph] : entries_) {
    result.push_back({.capture_id = id < first_share_id ? id : 0,
                      .label = label,
                      .slots = graph.holds,
                      .since = graph.since,
                      .where = graph.where});
  }
  return result;
}

std::size_t capture_reuse::slots_held() const noexcept {
  std::lock_guard const lock(mutex_);
  return slots_held_;
}

}  // namespace escrow::inline v0_1
