// How a set is placed on a graph, and what holds it.
#include "escrow/internal/reference_set.hpp"

#include <algorithm>
#include <functional>

#include "escrow/core/error.hpp"
#include "escrow/internal/deleter_accounts.hpp"
#include "escrow/internal/retry_cleanup.hpp"

namespace escrow::inline v0_1 {

namespace {

// On the last reference's thread, perhaps CUDA's: no CUDA call, allocation, lock or wait.
void CUDART_CB drop_graph_reference(void* set) noexcept {
  static_cast<reference_set*>(set)->leave_graphs();
  static_cast<reference_set*>(set)->drop_ref();
}

}  // namespace

ref<reference_set> reference_set::make(deleter_core& core, int device,
                                       std::shared_ptr<launch_order> order) {
  ref<reference_set> made(*new reference_set(core, device, std::move(order)));
  graph_registry::global().add_set(*made);
  return made;
}

void reference_set::list_members(std::vector<reclaimable const*>& found) const {
  if (is_closed()) return;
  for (auto const& each : members_) found.push_back(each.get());
}

bool kept_sets::add(reference_set& set) {
  std::lock_guard const lock(mutex_);
  if (!is_released_) sets_.emplace_back(set);
  return !is_released_;
}

void kept_sets::drop(std::uint64_t capture_id) noexcept {
  while (true) {
    ref<reference_set> dropped;  // without the lock
    std::lock_guard const lock(mutex_);
    auto const found = std::ranges::find(sets_, capture_id, [](auto& each) { return each->id_; });
    if (found == sets_.end()) return;
    std::swap(*found, sets_.back());
    dropped = std::move(sets_.back());
    sets_.pop_back();
  }
}

reference_sets kept_sets::take_all() noexcept {
  std::lock_guard const lock(mutex_);
  is_released_ = true;
  return std::exchange(sets_, {});
}

void kept_sets::release() noexcept {
  static_cast<void>(take_all());
}

std::size_t kept_sets::leak() noexcept {
  std::size_t members = 0;
  for (ref<reference_set>& each : take_all()) {
    reference_set& leaked = *each.release();  // the registry knows it
    members += leaked.size();
    for (std::size_t i = 0; i < leaked.size(); ++i) leaked.accounts().count_leaked();
  }
  return members;
}

void reference_set::place(cudaGraph_t graph, std::uint64_t id, bool is_open, kept_sets* keeper) {
  graph_registry& registry = graph_registry::global();
  if (keeper != nullptr) {
    registry.add(*this, id, graph, keeper->weak_from_this());
    bool is_kept = false;
    try {
      is_kept = keeper->add(*this);
    } catch (...) {
      registry.remove(*this, graph);
      throw;
    }
    if (is_kept) {
      keeper_ = keeper;
      if (is_open) registry.open(*this);
      return;
    }
    registry.remove(*this, graph);
  }
  check(cudaUserObjectCreate(&object_, this, &drop_graph_reference, 1,
                             cudaUserObjectNoDestructorSync),
        "cudaUserObjectCreate");
  add_ref();  // the object's
  bool is_noted = false;
  try {
    // First: once the object is on the graph nothing may fail, and the graph may be destroyed.
    registry.add(*this, id, graph);
    is_noted = true;
    check(cudaGraphRetainUserObject(graph, object_, 1, cudaGraphUserObjectMove),
          "cudaGraphRetainUserObject");
  } catch (...) {
    if (is_noted) registry.remove(*this, graph);
    release_object(object_, accounts());
    throw;
  }
  if (is_open) registry.open(*this);
}

void hold_in_graph(reclaimable& member, bool is_written, cudaGraph_t graph, std::uint64_t id,
                   bool may_append, std::shared_ptr<group_order> const& group, bool& is_taken,
                   kept_sets* keeper) {
  using appended = graph_registry::appended;
  appended const found = may_append ? graph_registry::global().append(id, graph, member, is_written,
                                                                      group.get(), keeper)
                                    : appended::no_set;
  if (found == appended::closed) {
    throw usage_error("claim or retire", "the capture was ended while the call used it",
                      "use a stream on one thread at a time");
  }
  is_taken = found == appended::yes;
  if (is_taken) return;
  ref<reference_set> const made = reference_set::make(member.core(), member.device(), group);
  graph_registry::global().append_first(*made, member, is_written);
  is_taken = true;
  made->place(graph, id, may_append, keeper);  // if it throws, the member is reclaimed with the set
}

void release_object(cudaUserObject_t object, deleter_accounts& its) noexcept {
  cudaError_t const status = retry_cleanup([object] { return cudaUserObjectRelease(object, 1); });
  if (status == cudaSuccess || is_sticky(status)) return;  // after a fault the status says nothing
  its.count_leaked();
  its.report(status, "cudaUserObjectRelease");
}

deferred_releases hold_all(reference_sets const& sets) {
  deferred_releases held;
  for (auto const& each : sets) held.emplace_back(*each);
  return held;
}

void leak(deferred_releases held) noexcept {
  for (deferred_release& each : held) each.set.release()->accounts().count_leaked();
}

resource_usage resource_usage_of(std::vector<reclaimable const*> members) {
  // Sets may share members and slots, and a graph with the same child twice has its sets twice.
  auto const identity = [](reclaimable const* each) -> void const* {
    return each->is_slot() ? static_cast<slot_reference const*>(each)->slot_address() : each;
  };
  std::ranges::sort(members, std::less<>(), identity);
  auto const is_same = [&](auto* one, auto* other) { return identity(one) == identity(other); };
  members.erase(std::unique(members.begin(), members.end(), is_same), members.end());
  resource_usage sum;
  for (reclaimable const* const each : members) {
    ++(each->is_slot() ? sum.slots : sum.owners);
    if (each->is_slot()) sum.bytes += static_cast<slot_reference const*>(each)->bytes();
  }
  return sum;
}

resource_usage resource_usage_of(deferred_releases const& held) {
  std::vector<reclaimable const*> members;
  for (auto const& each : held) each.set->list_members(members);
  return resource_usage_of(std::move(members));
}

}  // namespace escrow::inline v0_1
