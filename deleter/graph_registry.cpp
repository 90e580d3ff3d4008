// SPDX-License-Identifier: Apache-2.0
// Registry entries: from a graph's first set to its last.
#include "escrow/internal/graph_registry.hpp"
#include "escrow/internal/reference_set.hpp"

#include <algorithm>
#include <utility>

#include "escrow/detail/reclaimable.hpp"
#include "escrow/internal/never_destroyed.hpp"

namespace escrow::inline v0_2 {

graph_registry& graph_registry::global() noexcept {
  static never_destroyed<graph_registry> only;  // see the class comment
  return *only;
}

void graph_registry::add_body(cudaGraph_t body) noexcept {
  std::lock_guard const lock(mutex_);
  try {
    bodies_.insert(body);
  } catch (std::bad_alloc const&) {  // it is for the refusal of a misuse alone
  }
}

void graph_registry::drop_body(cudaGraph_t body) noexcept {
  std::lock_guard const lock(mutex_);
  bodies_.erase(body);
}

bool graph_registry::is_body(cudaGraph_t graph) const noexcept {
  std::lock_guard const lock(mutex_);
  return bodies_.contains(graph);
}

void graph_registry::own(cudaGraph_t graph, std::uint64_t id) {
  std::lock_guard const lock(mutex_);
  entry_for(graph, id)->second.is_owned = true;
}

void graph_registry::disown(cudaGraph_t graph, std::uint64_t id) noexcept {
  std::lock_guard const lock(mutex_);
  auto const found = entries_.find(graph);
  if (found == entries_.end()) return;
  if (id == 0) clear(found);
  found->second.id = id;
  found->second.is_owned = false;
  erase_if_unused(found);
}

void graph_registry::add_copy(cudaGraph_t original, std::uint64_t id, cudaGraph_t copy,
                              lease_spans leases, cudaGraph_t root) {
  std::lock_guard const lock(mutex_);
  entry const* const found = find(original);
  if (found == nullptr || (found->sets.empty() && found->hoists.empty())) return;
  auto hoists = found->hoists;
  auto orders = found->orders;               // also of what was hoisted
  note(id, copy, std::vector(found->sets));  // another entry may be moved
  entry& its = entries_.find(copy)->second;
  its.hoists.swap(hoists);
  its.orders.swap(orders);
  its.copied_leases.swap(leases);
  if (its.is_owned) return;
  entry const* const whole = find(root);
  if (whole == nullptr) return;  // of a body, or a graph of plain CUDA
  its.part_of = whole->is_owned ? root : whole->part_of;
  auto const outermost = entries_.find(its.part_of);
  if (outermost != entries_.end()) outermost->second.has_parts = true;
  if (!is_hidden(copy)) expose_sets(its);
}

void graph_registry::remove_hoisted(reference_set& set, cudaGraph_t graph,
                                    hoist_ref const& by) noexcept {
  std::lock_guard const lock(mutex_);
  auto const found = entries_.find(graph);
  if (found == entries_.end()) return;
  // seal() has made room, here and below. Of those that are released the last one is kept.
  hoist_notes& hoists = found->second.hoists;
  if (hoists.empty() || hoists.back() != by) {
    bool is_last = true;
    for (auto each = hoists.end(); each != hoists.begin();) {
      // Relaxed: see hoist_note.
      if (!(*--each)->is_released.load(std::memory_order_relaxed)) continue;
      if (!std::exchange(is_last, false)) each = hoists.erase(each);
    }
    hoists.push_back(by);
  }
  if (set.is_exclusive()) found->second.orders.push_back(set.order_);
  set.hoisted_off_ = found->second.id;
  if (set.hoisted_off_ == set.id_) set.leave_its_graph();
  drop(set, graph);
}

void graph_registry::forget_released(std::uint64_t id, cudaGraph_t graph) noexcept {
  std::lock_guard const lock(mutex_);
  drop_released(id, graph);
}

void graph_registry::end_capture(std::uint64_t id, cudaGraph_t graph) noexcept {
  if (id == 0) return;
  std::lock_guard const lock(mutex_);
  entry const* const found = find(graph, id);
  if (found == nullptr) return;
  for (reference_set* const each : found->sets) {
    each->captures_ended_.fetch_add(1, std::memory_order_relaxed);  // see there
  }
}

void graph_registry::drop_capture(std::uint64_t id) noexcept {
  if (id == 0) return;
  while (true) {
    std::shared_ptr<kept_sets> keeper;
    {
      std::lock_guard const lock(mutex_);
      for (reference_set* const each : sets_) {  // the graph is gone, and its handle another's
        if (each->id_ != id) continue;
        keeper = std::exchange(each->kept_by_, {}).lock();
        if (keeper != nullptr) break;
      }
    }
    if (keeper == nullptr) return;
    keeper->drop(id);  // without the lock
  }
}

void graph_registry::drop(reference_set& set, cudaGraph_t graph) noexcept {
  std::erase(set.graphs_, graph);
  auto const found = entries_.find(graph);
  if (found == entries_.end()) return;
  std::erase(found->second.sets, &set);
  erase_if_unused(found);
}

void graph_registry::remove(reference_set& set, cudaGraph_t graph) noexcept {
  std::lock_guard const lock(mutex_);
  drop(set, graph);
}

void graph_registry::forget_set(reference_set& set) noexcept {
  std::lock_guard const lock(mutex_);
  while (!set.graphs_.empty()) drop(set, set.graphs_.back());
}

void graph_registry::remove_set(reference_set& doomed) noexcept {
  std::lock_guard const lock(mutex_);
  sets_.erase(&doomed);
}

std::vector<reference_set*> graph_registry::seal(cudaGraph_t graph) {
  std::lock_guard const lock(mutex_);
  auto const its = entries_.find(graph);
  if (its == entries_.end()) return {};
  entry* const found = &its->second;
  std::erase_if(found->orders, [](auto const& each) { return each.expired(); });
  found->orders.reserve(found->orders.size() + found->sets.size());  // see remove_hoisted()
  found->hoists.reserve(found->hoists.size() + 1);
  note_outliving(*found);  // nobody seals a graph that is being captured into
  std::vector<reference_set*> sealed = found->sets;
  for (reference_set* const each : sealed) each->phase_ = reference_set::phase::sealed;
  return sealed;
}

std::size_t graph_registry::sets_on(cudaGraph_t graph) const noexcept {
  std::lock_guard const lock(mutex_);
  entry const* const found = find(graph);
  return found == nullptr ? 0 : found->sets.size();
}

bool graph_registry::is_sealed(reference_set const& set) const noexcept {
  std::lock_guard const lock(mutex_);
  return set.phase_ == reference_set::phase::sealed;
}

bool graph_registry::is_on(reference_set const& set, cudaGraph_t graph) const noexcept {
  std::lock_guard const lock(mutex_);
  return !set.is_off_graphs() && std::ranges::find(set.graphs_, graph) != set.graphs_.end();
}

graph_registry::known_graph graph_registry::known(cudaGraph_t graph) const noexcept {
  std::lock_guard const lock(mutex_);
  entry const* const found = find(graph);
  if (found == nullptr) return {};
  known_graph its{found->id, found->is_owned, !found->hoists.empty() || !found->sets.empty()};
  for (auto const& each : found->hoists) {
    if (each->is_released.load(std::memory_order_relaxed)) its.released = each;
  }
  return its;
}

bool graph_registry::is_empty() const noexcept {
  std::lock_guard const lock(mutex_);
  return sets_.empty();
}

graph_registry::begun_claim graph_registry::begin_claim(std::uint64_t id, cudaGraph_t graph,
                                                        group_order const& group) noexcept {
  begun_claim its;
  std::lock_guard const lock(mutex_);
  drop_released(id, graph);
  entry const* const found = find(graph, id);
  if (found == nullptr) return its;
  its.generation = found->generation;
  for (lease_span const& each : found->copied_leases) {
    if (&each.lease->origin->group == &group) {
      its.behind = std::max(its.behind, each.lease->place.end);
    }
  }
  return its;
}

bool graph_registry::has_sealed(std::uint64_t id, cudaGraph_t graph,
                                group_order const& group) const noexcept {
  std::lock_guard const lock(mutex_);
  entry const* const found = find(graph, id);
  if (found == nullptr) return false;
  return !found->hoists.empty() ||
         std::ranges::any_of(found->sets, [&group](reference_set* const each) {
           return each->phase_ == reference_set::phase::sealed && each->order_.get() == &group;
         });
}

graph_registry::group_set graph_registry::orders_of(cudaGraph_t graph, bool of_groups) const {
  std::vector<std::shared_ptr<launch_order>> all;
  {
    std::lock_guard const lock(mutex_);
    entry const* const found = find(graph);
    if (found == nullptr) return {};
    // None of them ends under the lock.
    all.reserve(found->sets.size() + found->orders.size());
    for (reference_set const* const each : found->sets) {
      if (each->is_exclusive()) all.push_back(each->order_);
    }
    for (auto const& each : found->orders) {
      if (auto order = each.lock()) all.push_back(std::move(order));
    }
  }
  group_set result;
  for (auto& each : all) {
    if ((each->group != nullptr) == of_groups) result.insert(std::move(each));
  }
  return result;
}

void graph_registry::note_ordered(deferred_releases const& held) noexcept {
  std::lock_guard const lock(mutex_);
  for (auto const& each : held) each.set->is_ordered_ = true;
}

void graph_registry::note_hoisted(deferred_release& held, bool are_launches_unknown) noexcept {
  std::lock_guard const lock(mutex_);
  if (std::exchange(held.of_unknown_launches, are_launches_unknown) == are_launches_unknown) return;
  held.set->unknown_hoists_ += are_launches_unknown ? 1 : -1;
}

graph_registry::group_members graph_registry::members_of(group_order const& group) const {
  std::vector<reclaimable const*> members;
  std::vector<std::uint64_t> unordered;
  std::lock_guard const lock(mutex_);
  for (reference_set const* const each : sets_) {
    if (each->order_.get() != &group) continue;
    each->list_members(members);
    if (each->is_ordered_) continue;
    for (cudaGraph_t const graph : each->graphs_) unordered.push_back(entries_.at(graph).id);
    if (each->hoisted_off_ != 0) {
      unordered.push_back(each->hoisted_off_);
    } else if (each->graphs_.empty()) {  // they were destroyed: plain execs have it
      unordered.push_back(each->id_);
    }
  }
  std::ranges::sort(unordered);
  unordered.erase(std::unique(unordered.begin(), unordered.end()), unordered.end());
  return {resource_usage_of(std::move(members), false), std::move(unordered),
          group.leases->outliving.load(std::memory_order_relaxed)};
}

std::string graph_registry::describe_sets(deleter_core const& core) const {
  std::string text;
  std::lock_guard const lock(mutex_);
  for (reference_set const* const each : sets_) {
    if (&each->core() != &core) continue;
    std::uint64_t const id = each->graphs_.empty() ? 0 : entries_.at(each->graphs_.front()).id;
    text += each->graphs_.empty() ? "\n  an exec, or a plain copy of a graph"
            : id == 0             ? "\n  a graph built by hand"
                                  : "\n  graph " + std::to_string(id);
    text += " holds a reference set";
    if (each->graphs_.empty()) text += "; if it is never released, an owner in it may own the exec";
  }
  return text;
}

resource_usage graph_registry::describe(std::set<cudaGraph_t> const& graphs) const {
  std::vector<reclaimable const*> members;
  std::lock_guard const lock(mutex_);
  for (cudaGraph_t const graph : graphs) {
    entry const* const found = find(graph);
    if (found == nullptr) continue;
    for (reference_set const* const each : found->sets) each->list_members(members);
  }
  return resource_usage_of(std::move(members));
}

}  // namespace escrow::inline v0_2
