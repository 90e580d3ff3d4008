// SPDX-License-Identifier: Apache-2.0
// A graph gets a thing: in a set that it has, or in a new one that is placed on it.
#include <algorithm>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "escrow/core/error.hpp"
#include "escrow/detail/shared_count.hpp"
#include "escrow/internal/deleter_core.hpp"
#include "escrow/internal/graph_registry.hpp"
#include "escrow/internal/reference_set.hpp"

namespace escrow::inline v0_2 {

namespace {

// On the last reference's thread, perhaps CUDA's: no CUDA call, allocation, lock or wait.
void CUDART_CB drop_graph_reference(void* set) noexcept {
  static_cast<reference_set*>(set)->leave_graphs();
  static_cast<reference_set*>(set)->drop_ref();
}

}  // namespace

void hold_in_graph(reclaimable& member, member_use use, cudaGraph_t graph, std::uint64_t id,
                   bool may_append, std::shared_ptr<group_order> const& group, bool& is_taken,
                   kept_sets* keeper) {
  graph_registry& registry = graph_registry::global();
  is_taken = may_append && registry.append(id, graph, member, use, group.get(), keeper);
  if (is_taken) return;
  ref<reference_set> made = reference_set::make(member.core(), member.device(), group);
  made->append(member, use);
  is_taken = true;  // if place() throws, the member is reclaimed with the set
  registry.place(std::move(made), graph, id, may_append, keeper);
}

bool graph_registry::append(std::uint64_t id, cudaGraph_t graph, reclaimable& member,
                            member_use use, group_order const* group, kept_sets const* keeper) {
  std::lock_guard const lock(mutex_);
  if (member.is_slot()) drop_released(id, graph);
  entry const* const found = find(graph, id);
  if (found == nullptr) return false;
  for (reference_set* const each : found->sets) {
    if (each->phase_ != reference_set::phase::open || &each->core() != &member.core()) continue;
    if (each->order_->group != group || each->keeper_ != keeper) continue;
    if (each->is_closed()) {
      throw usage_error("claim or retire", "the capture was ended while the call used it",
                        "use a stream on one thread at a time");
    }
    each->append(member, use);
    return true;
  }
  return false;
}

reference_set::reference_set(deleter_core& core, int device, std::shared_ptr<launch_order> order)
    : reclaimable(core, release_lane::recycle, device, &reclaim_set),
      order_(order != nullptr ? std::move(order) : make_apart<launch_order>()) {
  core.queue_of(release_lane::destroy).reserve_places(1);
}

ref<reference_set> reference_set::make(deleter_core& core, int device,
                                       std::shared_ptr<launch_order> order) {
  return ref<reference_set>(*new reference_set(core, device, std::move(order)));
}

void reference_set::append(reclaimable& member, member_use use) {
  members_.emplace_back(member);
  use_ = std::max(use_, use);
  if (member.is_slot()) static_cast<slot_reference&>(member).enter(*this);
}

void graph_registry::place(ref<reference_set> made, cudaGraph_t graph, std::uint64_t id,
                           bool is_open, kept_sets* keeper) {
  reference_set* const set = made.get();
  set->id_ = id;
  if (keeper != nullptr) set->kept_by_ = keeper->weak_from_this();
  {  // first: once the graph has the set nothing may fail, and the graph may be destroyed
    std::lock_guard const lock(mutex_);
    sets_.insert(set);
    note(id, graph, {&set, 1});
  }
  try {
    if (keeper != nullptr && keeper->add(*set)) {
      std::lock_guard const lock(mutex_);
      set->keeper_ = keeper;
    } else {
      cudaUserObject_t object = nullptr;
      check(cudaUserObjectCreate(&object, set, &drop_graph_reference, 1,
                                 cudaUserObjectNoDestructorSync),
            "cudaUserObjectCreate");
      static_cast<void>(made.release());  // it is the object's
      {
        std::lock_guard const lock(mutex_);
        set->object_ = object;
      }
      check(cudaGraphRetainUserObject(graph, set->object_, 1, cudaGraphUserObjectMove),
            "cudaGraphRetainUserObject");
    }
  } catch (...) {
    remove(*set, graph);
    if (!made) release_object(set->object_, set->accounts());
    throw;
  }
  if (!is_open) return;
  std::lock_guard const lock(mutex_);  // the set may be gone, with that graph
  entry const* const found = find(graph, id);
  if (found == nullptr || std::ranges::find(found->sets, set) == found->sets.end()) return;
  if (set->phase_ == reference_set::phase::filling) set->phase_ = reference_set::phase::open;
}

void graph_registry::drop_released(std::uint64_t id, cudaGraph_t graph) noexcept {
  if (find(graph, id) == nullptr) return;
  entry& its = entries_.find(graph)->second;
  std::size_t const released = std::erase_if(its.sets, [graph](auto* const each) {
    return each->is_off_graphs() && std::erase(each->graphs_, graph) != 0;
  });
  // Relaxed: see hoist_note.
  auto const is_released = [](auto const& by) {
    return by->is_released.load(std::memory_order_relaxed);
  };
  auto const last = std::ranges::find_if(its.hoists.rbegin(), its.hoists.rend(), is_released);
  hoist_ref const by = last != its.hoists.rend() ? *last : nullptr;
  bool const was_hoisted = std::exchange(its.last_release, by) != by;
  // Another set is of this capture: what it has claimed stays known.
  if ((released == 0 && !was_hoisted) || !its.sets.empty()) return;
  its.generation = ++last_generation_;
  its.leases.clear(spare_leases_);  // with the nodes
  its.copied_leases.clear();
  its.orders.clear();
}

graph_registry::entry const* graph_registry::find(cudaGraph_t graph,
                                                  std::uint64_t id) const noexcept {
  auto const found = entries_.find(graph);
  if (found == entries_.end()) return nullptr;
  return is_it(found->second, id) ? &found->second : nullptr;
}

graph_registry::entries::iterator graph_registry::entry_for(cudaGraph_t graph, std::uint64_t id) {
  auto const found = entries_.try_emplace(graph).first;
  if (id == 0) return found;
  // The graph that had the handle before was destroyed.
  if (!found->second.is_owned && found->second.id != id) clear(found);
  found->second.id = id;
  return found;
}

void graph_registry::note(std::uint64_t id, cudaGraph_t graph,
                          std::span<reference_set* const> added) {
  for (reference_set* const each : added) each->graphs_.reserve(each->graphs_.size() + 1);
  auto const found = entry_for(graph, id);
  std::vector<reference_set*>& sets = found->second.sets;
  try {
    sets.reserve(sets.size() + added.size());
    auto& orders = found->second.orders;
    for (reference_set* const each : added) {
      auto const& order = each->order_;
      auto const is_it = [&order](auto const& known) {  // lock() could destroy it here
        return !known.owner_before(order) && !order.owner_before(known);
      };
      if (order->group == nullptr || std::ranges::any_of(orders, is_it)) continue;
      orders.push_back(order);
    }
  } catch (...) {
    erase_if_unused(found);
    throw;
  }
  sets.insert(sets.end(), added.begin(), added.end());
  for (reference_set* const each : added) {
    each->graphs_.push_back(graph);
    each->is_exposed_ |= found->second.is_exposed;
  }
}

void graph_registry::clear(entries::iterator dead) noexcept {
  // They ended with it, and their handles are others'.
  for (auto next = entries_.begin(); dead->second.has_parts && next != entries_.end();) {
    auto const each = next++;
    if (each->second.part_of != dead->first) continue;
    for (reference_set* const set : each->second.sets) std::erase(set->graphs_, each->first);
    entries_.erase(each);
  }
  for (reference_set* const each : dead->second.sets) std::erase(each->graphs_, dead->first);
  dead->second.sets.clear();
  dead->second.orders.clear();
  dead->second.leases.clear(spare_leases_);
  dead->second.copied_leases.clear();
  dead->second.hoists.clear();
  dead->second.last_release.reset();
  dead->second.is_exposed = false;
  dead->second.has_parts = false;
  dead->second.part_of = nullptr;
}

void graph_registry::erase_if_unused(entries::iterator found) noexcept {
  entry& unused = found->second;
  if (!unused.sets.empty() || !unused.hoists.empty() || unused.is_owned) return;
  unused.leases.clear(spare_leases_);
  entries_.erase(found);
}

}  // namespace escrow::inline v0_2
