// Entries come with the first reference and go with the last.
#include "escrow/deleter/graph_registry.hpp"

#include <algorithm>
#include <new>
#include <string_view>
#include <utility>

namespace escrow {

namespace {

void add_labelled(resource_usage& sum, std::string_view label, std::size_t bytes) {
  auto found = std::ranges::find(sum.labels, label, &resource_usage::labelled::label);
  if (found == sum.labels.end()) {
    found = sum.labels.insert(found, {.label = std::string(label)});
  }
  ++found->count;
  found->bytes += bytes;
}

void describe_reference(graph_reference const& reference, resource_usage& sum) {
  if (!reference.is_slot()) {
    ++sum.owners;
    return add_labelled(sum, "owners", 0);
  }
  auto const& slot = static_cast<slot_reference const&>(reference);
  ++sum.slots;
  sum.bytes += slot.bytes();
  add_labelled(sum, slot.label(), slot.bytes());
}

}  // namespace

graph_registry& graph_registry::global() noexcept {
  // Never destroyed: see the class comment. In static memory, since a destroy path may be the first
  // to ask.
  alignas(graph_registry) static std::byte storage[sizeof(graph_registry)];
  static graph_registry& global = *::new (static_cast<void*>(storage)) graph_registry;
  return global;
}

graph_registry::entry& graph_registry::entry_of(std::uint64_t id, cudaGraph_t graph) {
  auto const [found, is_new] = entries_.try_emplace(id);
  if (!is_new || id == unidentified) return found->second;
  try {
    auto const [handle, is_first] = id_of_handle_.try_emplace(graph, id);
    // The graph that had the handle before is dead: nobody will ask what it had.
    if (!is_first) forget(std::exchange(handle->second, id));
  } catch (...) {
    entries_.erase(found);
    throw;
  }
  found->second.graph = graph;
  return found->second;
}

void graph_registry::forget_destroyed(std::uint64_t id) noexcept {
  std::lock_guard const lock(mutex_);
  forget(id);
}

void graph_registry::forget(std::uint64_t dead_id) noexcept {
  auto const found = entries_.find(dead_id);
  if (found == entries_.end()) return;
  entry& dead = found->second;
  for (placed_bundle const& each : dead.bundles) std::erase(each.bundle->graph_ids_, dead_id);
  dead.bundles.clear();
  dead.singles.clear();  // those that are not gone are counted still
  erase_if_unused(found);
}

void graph_registry::erase_if_unused(entries::iterator found) noexcept {
  auto const& [id, unused] = *found;
  if (unused.alive != 0 || !unused.bundles.empty() || unused.is_pinned) return;
  auto const handle = id_of_handle_.find(unused.graph);
  if (handle != id_of_handle_.end() && handle->second == id) id_of_handle_.erase(handle);
  entries_.erase(found);
}

void graph_registry::add(single added, std::uint64_t id, cudaGraph_t graph) {
  std::lock_guard const lock(mutex_);
  entry& noted = entry_of(id, graph);
  try {
    if (id != unidentified) noted.singles.push_back(added);  // else only counted
  } catch (...) {
    erase_if_unused(entries_.find(id));
    throw;
  }
  ++noted.alive;
  ++references_;
  added.node->graph_id_ = id;
}

void graph_registry::add(placed_bundle added, std::uint64_t id, cudaGraph_t graph) {
  std::lock_guard const lock(mutex_);
  added.bundle->graph_ids_.reserve(added.bundle->graph_ids_.size() + 1);
  entry& noted = entry_of(id, graph);
  try {
    noted.bundles.push_back(added);
  } catch (...) {
    erase_if_unused(entries_.find(id));
    throw;
  }
  added.bundle->graph_ids_.push_back(id);
}

void graph_registry::add_copy(std::uint64_t original_id, std::uint64_t id, cudaGraph_t copy) {
  std::lock_guard const lock(mutex_);
  auto const original = entries_.find(original_id);
  if (original == entries_.end()) return;
  std::vector<placed_bundle> const& copied = original->second.bundles;  // stays where it is
  for (placed_bundle const& each : copied) {
    each.bundle->graph_ids_.reserve(each.bundle->graph_ids_.size() + 1);
  }
  entry& noted = entry_of(id, copy);
  try {
    noted.bundles.insert(noted.bundles.end(), copied.begin(), copied.end());
  } catch (...) {
    erase_if_unused(entries_.find(id));
    throw;
  }
  for (placed_bundle const& each : copied) each.bundle->graph_ids_.push_back(id);
}

void graph_registry::add_parts(std::span<graph_reference* const> parts) noexcept {
  std::lock_guard const lock(mutex_);
  for (graph_reference* const part : parts) {
    if (part->graph_id_ == 0) ++references_;  // else it is in another bundle, too
    part->graph_id_ = bundled;
  }
}

void graph_registry::withdraw(graph_reference& node) noexcept {
  std::lock_guard const lock(mutex_);
  auto const found = entries_.find(std::exchange(node.graph_id_, 0));
  entry& noted = found->second;
  // From the back, where add() has put it just now.
  auto const last = std::find_if(noted.singles.rbegin(), noted.singles.rend(),
                                 [&node](single const& each) { return each.node == &node; });
  if (last != noted.singles.rend()) noted.singles.erase(std::next(last).base());
  --noted.alive;
  --references_;
  erase_if_unused(found);
}

void graph_registry::withdraw(graph_bundle& bundle, std::uint64_t id) noexcept {
  std::lock_guard const lock(mutex_);
  std::erase(bundle.graph_ids_, id);
  auto const found = entries_.find(id);
  if (found == entries_.end()) return;
  std::erase_if(found->second.bundles,
                [&bundle](placed_bundle const& each) { return each.bundle == &bundle; });
  erase_if_unused(found);
}

void graph_registry::remove(graph_reference& node) noexcept {
  std::lock_guard const lock(mutex_);
  std::uint64_t const id = std::exchange(node.graph_id_, 0);
  if (id == 0) return;  // it never came to be noted
  --references_;
  if (id == bundled) return;
  auto const found = entries_.find(id);
  // Only counted: the graph is dead, so nobody will ask what it had.
  --found->second.alive;
  erase_if_unused(found);
}

void graph_registry::remove(graph_bundle& bundle) noexcept {
  std::lock_guard const lock(mutex_);
  for (std::uint64_t const id : bundle.graph_ids_) {
    auto const found = entries_.find(id);
    if (found == entries_.end()) continue;  // the same twice: more than one was not identified
    std::erase_if(found->second.bundles,
                  [&bundle](placed_bundle const& each) { return each.bundle == &bundle; });
    erase_if_unused(found);
  }
  bundle.graph_ids_.clear();
}

std::vector<graph_registry::single> graph_registry::take_singles(std::uint64_t id) noexcept {
  std::lock_guard const lock(mutex_);
  auto const found = entries_.find(id);
  if (found == entries_.end()) return {};
  found->second.is_pinned = true;
  found->second.alive = 0;
  for (single const& each : found->second.singles) each.node->graph_id_ = bundled;
  return std::exchange(found->second.singles, {});
}

void graph_registry::keep_singles(std::uint64_t id, std::vector<single> kept) noexcept {
  std::lock_guard const lock(mutex_);
  auto const found = entries_.find(id);
  if (found == entries_.end()) return;
  for (single const& each : kept) each.node->graph_id_ = id;
  found->second.is_pinned = false;
  found->second.alive = kept.size();
  found->second.singles = std::move(kept);
  erase_if_unused(found);
}

bool graph_registry::has_singles(std::uint64_t id) const noexcept {
  std::lock_guard const lock(mutex_);
  auto const found = entries_.find(id);
  return found != entries_.end() && !found->second.singles.empty();
}

std::vector<graph_registry::placed_bundle> graph_registry::bundles_of(std::uint64_t id) const {
  std::lock_guard const lock(mutex_);
  auto const found = entries_.find(id);
  if (found == entries_.end()) return {};
  return found->second.bundles;
}

bool graph_registry::is_on(graph_bundle const& bundle, std::uint64_t id) const noexcept {
  std::lock_guard const lock(mutex_);
  return std::ranges::find(bundle.graph_ids_, id) != bundle.graph_ids_.end();
}

bool graph_registry::may_know(cudaGraph_t graph) const noexcept {
  std::lock_guard const lock(mutex_);
  return id_of_handle_.contains(graph);
}

bool graph_registry::knows(std::uint64_t id) const noexcept {
  std::lock_guard const lock(mutex_);
  return entries_.contains(id);
}

bool graph_registry::is_empty() const noexcept {
  std::lock_guard const lock(mutex_);
  return references_ == 0;
}

resource_usage graph_registry::describe(std::span<std::uint64_t const> ids) const {
  std::vector<graph_reference const*> found;
  std::lock_guard const lock(mutex_);
  for (std::uint64_t const id : ids) {
    auto const its = entries_.find(id);
    if (its == entries_.end()) continue;
    for (single const& each : its->second.singles) found.push_back(each.node);
    for (placed_bundle const& each : its->second.bundles) {
      found.insert(found.end(), each.bundle->parts().begin(), each.bundle->parts().end());
    }
  }
  return describe(std::move(found));
}

resource_usage graph_registry::describe(std::vector<graph_reference const*> held) {
  // Bundles may have parts in common, and a graph with the same child twice has its bundle twice.
  std::ranges::sort(held);
  held.erase(std::unique(held.begin(), held.end()), held.end());
  resource_usage sum;
  for (graph_reference const* const each : held) describe_reference(*each, sum);
  return sum;
}

}  // namespace escrow
