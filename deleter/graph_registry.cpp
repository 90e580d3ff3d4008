// Registry entries: from a graph's first set to its last.
#include "escrow/internal/reference_set.hpp"

#include <algorithm>
#include <utility>

#include "escrow/detail/reclaimable.hpp"
#include "escrow/internal/never_destroyed.hpp"

namespace escrow::inline v0_1 {

graph_registry& graph_registry::global() noexcept {
  static never_destroyed<graph_registry> only;  // see the class comment
  return *only;
}

std::uint64_t graph_registry::adopt(cudaGraph_t created) {
  std::lock_guard const lock(mutex_);
  // The graph that had the handle before was destroyed.
  forget_entry(std::exchange(handles_[created], next_key_));
  return next_key_++;
}

void graph_registry::give_id(std::uint64_t key, std::uint64_t id, cudaGraph_t graph) noexcept {
  std::lock_guard const lock(mutex_);
  auto renamed = entries_.extract(key);
  if (renamed.empty()) return;
  for (reference_set* const each : renamed.mapped().sets) {
    std::ranges::replace(each->graph_ids_, key, id);
  }
  if (auto const handle = handles_.find(graph); handle != handles_.end()) handle->second = id;
  renamed.key() = id;
  entries_.insert(std::move(renamed));  // in the room of the one that was taken out
}

void graph_registry::forget_graph(cudaGraph_t graph, std::uint64_t id) noexcept {
  std::lock_guard const lock(mutex_);
  forget_entry(id);
  auto const handle = handles_.find(graph);
  if (handle != handles_.end() && handle->second == id) handles_.erase(handle);
}

std::uint64_t graph_registry::resolve(std::uint64_t id, cudaGraph_t graph) const noexcept {
  auto const handle = handles_.find(graph);
  return handle != handles_.end() && is_key(handle->second) ? handle->second : id;
}

void graph_registry::note(std::uint64_t id, cudaGraph_t graph,
                          std::span<reference_set* const> added) {
  for (reference_set* const each : added) {
    each->graph_ids_.reserve(each->graph_ids_.size() + 1);
  }
  auto const found = entries_.try_emplace(id).first;
  std::vector<reference_set*>& sets = found->second.sets;
  try {
    sets.reserve(sets.size() + added.size());
    std::uint64_t& known = handles_.try_emplace(graph, id).first->second;
    // The graph that had the handle before was destroyed.
    if (known != id) forget_entry(std::exchange(known, id));
  } catch (...) {
    erase_if_unused(found);
    throw;
  }
  found->second.graph = graph;
  sets.insert(sets.end(), added.begin(), added.end());
  for (reference_set* const each : added) each->graph_ids_.push_back(id);
}

std::span<reference_set* const> graph_registry::sets_of(std::uint64_t id) const noexcept {
  auto const found = entries_.find(id);
  if (found == entries_.end()) return {};
  return found->second.sets;
}

void graph_registry::forget_entry(std::uint64_t dead_id) noexcept {
  auto const found = entries_.find(dead_id);
  if (found == entries_.end()) return;
  for (reference_set* const each : found->second.sets) std::erase(each->graph_ids_, dead_id);
  found->second.sets.clear();
  found->second.is_hoisted = false;
  erase_if_unused(found);
}

void graph_registry::erase_if_unused(entries::iterator found) noexcept {
  auto const& [id, unused] = *found;
  if (!unused.sets.empty() || unused.is_hoisted) return;
  auto const handle = handles_.find(unused.graph);
  if (handle != handles_.end() && handle->second == id && !is_key(id)) handles_.erase(handle);
  entries_.erase(found);
}

graph_registry::appended graph_registry::append(std::uint64_t id, cudaGraph_t graph,
                                                reclaimable& member, bool is_written,
                                                group_order const* group) noexcept {
  std::lock_guard const lock(mutex_);
  for (reference_set* const each : sets_of(resolve(id, graph))) {
    if (!each->is_open_ || &each->core() != &member.core()) continue;
    if (each->order_->group != group) continue;
    return each->append(member, is_written) ? appended::yes : appended::closed;
  }
  return appended::no_set;
}

std::uint64_t graph_registry::add(reference_set& added, std::uint64_t id, cudaGraph_t graph) {
  std::lock_guard const lock(mutex_);
  std::uint64_t const known = resolve(id, graph);
  reference_set* const set = &added;
  note(known, graph, {&set, 1});
  if (!is_key(id)) entries_.find(known)->second.capture_id = id;
  return known;
}

void graph_registry::open(reference_set& set) noexcept {
  std::lock_guard const lock(mutex_);
  set.is_open_ = !set.is_sealed_;
}

void graph_registry::add_copy(std::uint64_t original_id, std::uint64_t id, cudaGraph_t copy) {
  std::lock_guard const lock(mutex_);
  std::span<reference_set* const> const sets = sets_of(original_id);
  if (!sets.empty()) note(id, copy, std::vector(sets.begin(), sets.end()));
}

void graph_registry::take_out(reference_set const& set, std::uint64_t id) noexcept {
  auto const found = entries_.find(id);
  if (found == entries_.end()) return;
  std::erase_if(found->second.sets, [&set](reference_set* const each) { return each == &set; });
  erase_if_unused(found);
}

std::uint64_t graph_registry::remove_hoisted(reference_set& set, std::uint64_t id) noexcept {
  std::lock_guard const lock(mutex_);
  if (auto const found = entries_.find(id); found != entries_.end()) {
    found->second.is_hoisted = true;
  }
  set.hoisted_off_ = capture_id_of(id);
  drop(set, id);
  return set.hoisted_off_;
}

std::uint64_t graph_registry::capture_id_of(std::uint64_t id) const noexcept {
  if (!is_key(id)) return id;
  auto const found = entries_.find(id);
  return found == entries_.end() ? 0 : found->second.capture_id;
}

void graph_registry::forget_released(std::uint64_t id, cudaGraph_t graph) noexcept {
  std::lock_guard const lock(mutex_);
  auto const found = entries_.find(resolve(id, graph));
  if (found == entries_.end()) return;
  std::erase_if(found->second.sets, [&found](reference_set* const each) {
    return each->is_off_graphs() && std::erase(each->graph_ids_, found->first) != 0;
  });
  erase_if_unused(found);
}

void graph_registry::drop(reference_set& set, std::uint64_t id) noexcept {
  take_out(set, id);
  std::erase(set.graph_ids_, id);
}

void graph_registry::remove(reference_set& set, std::uint64_t id) noexcept {
  std::lock_guard const lock(mutex_);
  drop(set, id);
}

void graph_registry::forget_set(reference_set& set) noexcept {
  std::lock_guard const lock(mutex_);
  for (std::uint64_t const id : set.graph_ids_) take_out(set, id);
  set.graph_ids_.clear();
}

void graph_registry::add_set(reference_set const& made) {
  std::lock_guard const lock(mutex_);
  sets_.insert(&made);
}

void graph_registry::remove_set(reference_set const& doomed) noexcept {
  std::lock_guard const lock(mutex_);
  sets_.erase(&doomed);
}

std::vector<reference_set*> graph_registry::seal(std::uint64_t id) {
  std::lock_guard const lock(mutex_);
  std::span<reference_set* const> const sets = sets_of(id);
  std::vector<reference_set*> sealed(sets.begin(), sets.end());
  for (reference_set* const each : sealed) {
    each->is_open_ = false;
    each->is_sealed_ = true;
  }
  return sealed;
}

bool graph_registry::is_sealed(reference_set const& set) const noexcept {
  std::lock_guard const lock(mutex_);
  return set.is_sealed_;
}

bool graph_registry::is_on(reference_set const& set, std::uint64_t id) const noexcept {
  std::lock_guard const lock(mutex_);
  return !set.is_off_graphs() && std::ranges::find(set.graph_ids_, id) != set.graph_ids_.end();
}

std::uint64_t graph_registry::find(cudaGraph_t graph) const noexcept {
  std::lock_guard const lock(mutex_);
  auto const found = handles_.find(graph);
  return found == handles_.end() ? 0 : found->second;
}

bool graph_registry::knows(std::uint64_t id) const noexcept {
  std::lock_guard const lock(mutex_);
  return entries_.contains(id);
}

bool graph_registry::is_empty() const noexcept {
  std::lock_guard const lock(mutex_);
  return sets_.empty();
}

bool graph_registry::has_sealed(std::uint64_t id, cudaGraph_t graph,
                                group_order const& group) const noexcept {
  std::lock_guard const lock(mutex_);
  auto const found = entries_.find(resolve(id, graph));
  if (found == entries_.end()) return false;
  return found->second.is_hoisted ||
         std::ranges::any_of(found->second.sets, [&group](reference_set* const each) {
           return each->is_sealed_ && each->order_.get() == &group;
         });
}

graph_registry::group_set graph_registry::groups_of(std::uint64_t id) const {
  group_set result;
  std::lock_guard const lock(mutex_);
  auto const found = entries_.find(id);
  if (found == entries_.end()) return result;
  if (found->second.is_hoisted) result.insert(nullptr);
  for (reference_set const* const each : found->second.sets) {
    if (each->order_->group != nullptr) result.insert(each->order_);
  }
  return result;
}

void graph_registry::note_ordered(deferred_releases const& held) noexcept {
  std::lock_guard const lock(mutex_);
  for (auto const& each : held) each.set->is_ordered_ = true;
}

graph_registry::group_members graph_registry::members_of(group_order const& group) const {
  std::vector<reclaimable const*> members;
  std::vector<std::uint64_t> unordered;
  std::lock_guard const lock(mutex_);
  for (reference_set const* const each : sets_) {
    if (each->order_.get() != &group) continue;
    each->list_members(members);
    if (each->is_ordered_) continue;
    for (std::uint64_t const id : each->graph_ids_) unordered.push_back(capture_id_of(id));
    if (each->hoisted_off_ != 0) unordered.push_back(each->hoisted_off_);
  }
  std::ranges::sort(unordered);
  unordered.erase(std::unique(unordered.begin(), unordered.end()), unordered.end());
  return {resource_usage_of(std::move(members)), std::move(unordered)};
}

std::string graph_registry::describe_sets(deleter_core const& core) const {
  std::string text;
  std::lock_guard const lock(mutex_);
  for (reference_set const* const each : sets_) {
    if (&each->core() != &core) continue;
    std::vector<std::uint64_t> const& ids = each->graph_ids_;
    text += ids.empty()           ? "\n  an exec, or a plain copy of a graph"
            : is_key(ids.front()) ? "\n  a graph built by hand"
                                  : "\n  graph " + std::to_string(ids.front());
    text += " holds a reference set";
  }
  return text;
}

resource_usage graph_registry::describe(std::vector<std::uint64_t> const& ids) const {
  std::vector<reclaimable const*> members;
  std::lock_guard const lock(mutex_);
  for (std::uint64_t const id : ids) {
    for (reference_set* const each : sets_of(id)) each->list_members(members);
  }
  return resource_usage_of(std::move(members));
}

}  // namespace escrow::inline v0_1
