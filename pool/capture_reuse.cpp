// SPDX-License-Identifier: Apache-2.0
// Entries of captures, and the backward walk from a frontier.
#include "capture_reuse.hpp"

#include <algorithm>
#include <limits>
#include <span>
#include <utility>

#include "escrow/core/error.hpp"
#include "escrow/detail/cuda12.hpp"
#include "escrow/internal/graph_query.hpp"
#include "escrow/internal/reference_set.hpp"

namespace escrow::inline v0_2 {

namespace {

bool contains(std::span<cudaGraphNode_t const> set, cudaGraphNode_t node) {
  return std::find(set.begin(), set.end(), node) != set.end();
}

// The stream's next work in its capture depends on these nodes, too.
void add_dependencies(stream_ref stream, graph_nodes after) {
  check(cudaStreamUpdateCaptureDependencies(stream.get(), after.data(), nullptr, after.size(),
                                            cudaStreamAddCaptureDependencies),
        "cudaStreamUpdateCaptureDependencies");
}

bool are_in(graph_nodes const& some, cudaGraph_t graph) {
  if (some.empty()) return true;
  graph_nodes const all = nodes_of(graph);
  return std::ranges::all_of(some, [&](cudaGraphNode_t node) { return contains(all, node); });
}

[[noreturn]] void refuse_changed(char const* call) {
  throw usage_error(call, "the nodes that used the resource before were changed or destroyed",
                    "edit a graph after its capture");
}

}  // namespace

captured_slots* capture_reuse::find(size_class& size, std::uint64_t id) noexcept {
  auto const found = size.captured.entries.find(id);
  return found == size.captured.entries.end() ? nullptr : &found->second;
}

std::size_t capture_reuse::slots_held(size_class const& of) const noexcept {
  std::lock_guard const lock(mutex_);
  return of.captured.slots_held;
}

std::size_t capture_reuse::places_held(size_class const& of) const noexcept {
  std::lock_guard const lock(mutex_);
  return of.captured.places_held;
}

bool capture_reuse::is_ordered(slot const& held) noexcept {
  return std::ranges::find(held.held_by_, slot::no_claim) == held.held_by_.end();
}

void capture_reuse::stop_reuse(slot& held) noexcept {
  captured_slots* const of = find(held.of_, std::exchange(held.reusable_in_, 0));
  if (of != nullptr) std::erase(of->reusable, &held);
}

bool capture_reuse::end_lease_now(slot& held, bool is_shared, lease_state as) noexcept {
  if (held.in_group_ != nullptr) held.in_group_->end(as);
  held.last_in_group_ = std::move(held.in_group_);
  held.is_leased_ = false;
  ++moves_;
  if (held.held_by_.empty()) return true;
  if (!is_shared || held.is_exclusive_) return false;
  if (!is_in_group_ || held.is_shared_ || !is_ordered(held)) return false;
  held.is_shared_ = true;
  held.of_.captured.shared.add(held);
  return false;
}

void capture_reuse::unshare(slot& claimed) noexcept {
  if (std::exchange(claimed.is_shared_, false)) claimed.of_.captured.shared.remove(claimed);
}

void capture_reuse::add(slot& held, std::uint64_t id, bool is_claim, source_location where) {
  std::lock_guard const lock(mutex_);
  held.held_by_.reserve(held.held_by_.size() + 1);
  slots_in_graphs& its = held.of_.captured;
  auto const [found, is_new] = its.entries.try_emplace(id);
  if (is_new) {
    found->second.since = std::chrono::steady_clock::now();
    found->second.where = where;
  }
  ++found->second.holds;
  held.is_leased_ = held.may_be_in_graphs_ = true;
  if (held.held_by_.empty()) ++(held.place_ == nullptr ? its.slots_held : its.places_held);
  held.held_by_.push_back(is_claim ? id : slot::no_claim);
  if (!is_claim) return;
  held.reusable_in_ = id;
  held.claimed_with_ = nullptr;  // until it is in a set
}

bool capture_reuse::has_capture_ended(slot const& claimed) noexcept {
  return claimed.claimed_with_ != nullptr &&
         claimed.claimed_with_->captures_ended() != claimed.captures_ended_;
}

bool capture_reuse::remove(slot& held, std::uint64_t id, bool is_claim) noexcept {
  std::lock_guard const lock(mutex_);
  if (held.reusable_in_ == id) {
    held.is_capture_over_ = has_capture_ended(held);
    stop_reuse(held);
  }
  auto& entries = held.of_.captured.entries;
  auto const found = entries.find(id);
  if (--found->second.holds == 0) entries.erase(found);
  held.held_by_.erase(std::ranges::find(held.held_by_, is_claim ? id : slot::no_claim));
  bool const may_go = held.place_ == nullptr || arena::may_go(*held.place_, is_claim);
  if (!held.held_by_.empty()) return false;
  slots_in_graphs& all = held.of_.captured;
  --(held.place_ == nullptr ? all.slots_held : all.places_held);
  held.is_left_ = !held.is_leased_ && !may_go;  // to the claim that has its place
  if (held.is_leased_ || !may_go) return false;
  unshare(held);
  return true;
}

bool capture_reuse::is_given_up(slot const& asked) noexcept {
  bool const has_one_holder = !asked.is_leased_ && asked.held_by_.size() == 1 &&
                              asked.held_by_.front() == asked.reusable_in_;
  return has_one_holder && asked.reusable_in_ != slot::no_claim && asked.claimed_with_ != nullptr &&
         asked.claimed_with_->is_given_up();
}

bool capture_reuse::is_reusable(slot const& asked) noexcept {
  if (asked.is_leased_) return false;
  captured_slots const* const of = find(asked.of_, asked.reusable_in_);
  return of != nullptr && std::ranges::find(of->reusable, &asked) != of->reusable.end();
}

capture_reuse::claim_state capture_reuse::state_of(claimed_slot const& lease) const noexcept {
  std::uint64_t const id = lease.capture_id;
  if (id == 0) return {};
  slot const& claimed = *lease.what;
  std::lock_guard const lock(mutex_);
  if (claimed.reusable_in_ != id) {  // the set was released
    return {.capture = id, .is_over = claimed.is_capture_over_};
  }
  return {.capture = id,
          .is_held = claimed.claimed_with_->may_be_reused(),
          .is_over = has_capture_ended(claimed)};
}

// After a hoist or a recapture the slots of its graph are still listed.
bool capture_reuse::may_take(slot const& listed) noexcept {
  return !listed.is_leased_ && listed.claimed_with_->may_be_reused();
}

bool capture_reuse::end_lease_in(slot& held, capture_info const& capture,
                                 std::span<cudaGraphNode_t const> after, bool is_behind_claim) {
  std::uint64_t const id = capture.id;
  graph_nodes with_earlier;
  if (held.is_reused_ && !is_behind_claim) {
    with_earlier = held.released_after_;
    remove_before(with_earlier, after);  // what is found there is in the graph
    if (!are_in(with_earlier, capture.graph) || !is_unchanged(held)) {
      refuse_changed("lease::release");
    }
    with_earlier.insert(with_earlier.begin(), after.begin(), after.end());
    after = with_earlier;
  }
  std::uint64_t const edges = fingerprint_of(after);
  if (held.in_group_ != nullptr) held.in_group_->released_after.assign(after.begin(), after.end());
  std::lock_guard const lock(mutex_);
  held.released_after_.assign(after.begin(), after.end());
  held.released_edges_ = edges;
  // If graphs that are not ordered with this one hold it too, no claim may reuse it.
  bool const may_be_reused = held.reusable_in_ == id && is_ordered(held);
  if (held.place_ != nullptr) {
    may_be_reused ? held.pool_.arena_of().release(*held.place_) : arena::keep(*held.place_);
  } else if (may_be_reused && !held.is_exclusive_) {
    captured_slots& of = *find(held.of_, id);  // its graph holds the slot
    of.reusable.push_back(&held);
    ++of.offers;
    of.barren.clear();
  }
  held.unrecorded_.clear();  // before the slot can be leased again
  return end_lease_now(held, true, lease_state::released);
}

template <class Choose, class Check>
slot* capture_reuse::take(size_class& size, std::uint64_t id, Choose choose, Check is_right) {
  while (true) {
    slot* found = nullptr;
    {
      std::lock_guard const lock(mutex_);
      captured_slots const* const of = find(size, id);
      if (of != nullptr) found = choose(*of);
      if (found == nullptr) return nullptr;
      found->is_leased_ = true;
    }
    bool is_taken = false;
    try {
      is_taken = is_right(*found);
    } catch (...) {
      if (untake(*found, true)) found->leave_graphs();
      throw;
    }
    if (is_taken && lease_again(*found, id)) return found;
    if (untake(*found, false)) found->leave_graphs();
  }
}

bool capture_reuse::lease_again(slot& asked, std::uint64_t id) noexcept {
  std::lock_guard const lock(mutex_);
  if (asked.reusable_in_ != id) return false;  // its graph has let go of it meanwhile
  if (captured_slots* const of = find(asked.of_, id)) std::erase(of->reusable, &asked);
  asked.is_reused_ = true;
  asked.captures_ended_ = asked.claimed_with_->captures_ended();
  unshare(asked);
  return true;
}

bool capture_reuse::untake(slot& asked, bool stays_reusable) noexcept {
  std::lock_guard const lock(mutex_);
  captured_slots* const of = find(asked.of_, asked.reusable_in_);
  if (of != nullptr && !stays_reusable) std::erase(of->reusable, &asked);
  asked.is_leased_ = false;
  ++moves_;
  if (!asked.held_by_.empty()) return false;
  unshare(asked);
  return true;
}

slot* capture_reuse::take_shared(size_class& size, std::uint64_t id) noexcept {
  std::lock_guard const lock(mutex_);
  for (slot* each = size.captured.shared.newest(); each != nullptr; each = each->older_) {
    auto const& held_by = each->held_by_;
    if (each->is_leased_ || std::ranges::find(held_by, id) != held_by.end()) continue;
    each->is_leased_ = true;
    unshare(*each);
    stop_reuse(*each);
    return each;
  }
  return nullptr;
}

bool capture_reuse::is_unchanged(slot const& released) {
  return fingerprint_of(released.released_after_) == released.released_edges_;
}

bool capture_reuse::is_unchanged_in(slot const& released, cudaGraph_t graph) {
  return are_in(released.released_after_, graph) && is_unchanged(released);
}

slot* capture_reuse::take_before(size_class& size, capture_frontier const& asked, std::uint64_t id,
                                 std::size_t slots_max) {
  constexpr std::size_t near = 256;
  std::span<cudaGraphNode_t const> const frontier = asked.all().first(asked.ended);
  auto const newest_of = [](captured_slots const& of, auto const& is_before) -> slot* {
    for (auto at = of.reusable.rbegin(); at != of.reusable.rend(); ++at) {
      if (may_take(**at) && std::ranges::all_of((*at)->released_after_, is_before)) return *at;
    }
    return nullptr;
  };
  // Most often it is the stream's last one, and a look at the frontier itself is enough.
  auto const is_at_frontier = [&](cudaGraphNode_t node) { return contains(frontier, node); };
  bool is_any = false;
  auto const choose_last = [&](captured_slots const& of) {
    is_any = !of.reusable.empty();
    return newest_of(of, is_at_frontier);
  };
  slot* const last = take(size, id, choose_last, is_unchanged);
  if (last != nullptr || !is_any) return last;

  met_nodes before;  // nearest first
  for (cudaGraphNode_t const node : frontier) before.add(node);
  auto const is_before = [&](cudaGraphNode_t node) { return before.contains(node); };
  // Of the last look at the reusable slots: how many may be walked, which nodes the releases came
  // after, and how many there were.
  std::size_t nodes_max = 0;
  std::unordered_set<cudaGraphNode_t> released_after;
  std::uint64_t offers = 0;
  auto const choose = [&](captured_slots const& of) {
    slot* const found = newest_of(of, is_before);
    if (found != nullptr) return found;
    offers = of.offers;
    for (slot const* each : of.reusable) {
      if (!each->claimed_with_->may_be_reused()) continue;
      nodes_max = of.holds < slots_max ? std::numeric_limits<std::size_t>::max() : near;
      released_after.insert(each->released_after_.begin(), each->released_after_.end());
    }
    return found;
  };
  auto const is_barren = [&](cudaGraphNode_t node) {
    std::lock_guard const lock(mutex_);
    captured_slots const* const of = find(size, id);
    return of == nullptr || of->barren.contains(node);
  };

  // Also at the frontier, where a release may have come since: it would be behind `barren`.
  bool is_worth_a_look = true;
  for (std::size_t walked = 0;; ++walked) {
    if (is_worth_a_look) {
      if (slot* const found = take(size, id, choose, is_unchanged)) return found;
    }
    if (walked == before.size()) break;
    if (walked == nodes_max) return nullptr;
    is_worth_a_look = false;
    cudaGraphNode_t const node = before[walked];
    if (is_barren(node)) continue;
    for_each_dependency(node, [&](cudaGraphNode_t earlier, cudaGraphEdgeData const& edge) {
      if (!ends_after(node, edge) || !before.add(earlier)) return;
      is_worth_a_look |= released_after.contains(earlier);
    });
  }
  std::lock_guard const lock(mutex_);
  captured_slots* const of = find(size, id);
  if (of == nullptr || of->offers != offers) return nullptr;
  of->barren.insert(frontier.begin(), frontier.end());
  return nullptr;
}

slot* capture_reuse::take_with_edge(size_class& size, capture_info const& capture,
                                    stream_ref stream) {
  auto const choose_oldest = [](captured_slots const& of) -> slot* {
    auto const oldest =
        std::ranges::find_if(of.reusable, [](slot const* each) { return may_take(*each); });
    return oldest == of.reusable.end() ? nullptr : *oldest;
  };
  return take(size, capture.id, choose_oldest, [&](slot& found) {
    if (!is_unchanged_in(found, capture.graph)) return false;
    add_dependencies(stream, found.released_after_);
    return true;
  });
}

void capture_reuse::order_after_release(char const* call, slot const& claimed, cudaGraph_t graph,
                                        stream_ref stream) {
  if (!claimed.is_reused_) return;
  if (!is_unchanged_in(claimed, graph)) refuse_changed(call);
  add_dependencies(stream, claimed.released_after_);
}

std::vector<holder> capture_reuse::holders(size_class const& of) const {
  std::lock_guard const lock(mutex_);
  std::vector<holder> result;
  for (auto const& [id, graph] : of.captured.entries) {
    result.push_back({.capture_id = id < first_share_id ? id : 0,
                      .label = of.label,
                      .slots = graph.holds,
                      .since = graph.since,
                      .where = graph.where});
  }
  return result;
}

}  // namespace escrow::inline v0_2
