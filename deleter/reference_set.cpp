// SPDX-License-Identifier: Apache-2.0
// What holds a set besides a graph, and what sets hold.
#include "escrow/internal/reference_set.hpp"

#include <algorithm>
#include <functional>
#include <map>

#include "escrow/core/error.hpp"
#include "escrow/detail/retired_object.hpp"
#include "escrow/internal/deleter_accounts.hpp"
#include "escrow/internal/retry_cleanup.hpp"

namespace escrow::inline v0_2 {

void reference_set::list_members(std::vector<reclaimable const*>& found) const {
  if (is_closed()) return;
  for (auto const& each : members_) {
    found.push_back(each.get());
    if (each->is_slot()) continue;
    for (reclaimable const* part = each->next_; part != nullptr; part = part->next_) {
      if (part->is_slot()) found.push_back(part);  // a node has a share of it
    }
  }
}

__attribute__((no_sanitize("thread"))) bool detail::has_pointer_to(void const* object,
                                                                   void const* in,
                                                                   std::size_t bytes) noexcept {
  using word [[gnu::may_alias]] = std::uintptr_t;
  auto const* const words = static_cast<word const*>(in);
  if (reinterpret_cast<std::uintptr_t>(in) % alignof(word) != 0) return false;
  auto const address = reinterpret_cast<std::uintptr_t>(object);
  for (std::size_t i = 0; i < bytes / sizeof(word); ++i) {  // no function that is watched
    if (words[i] == address) return true;
  }
  return false;
}

bool reference_set::owns(void const* object, bool or_points) const noexcept {
  return std::ranges::any_of(members_, [=](auto const& each) {
    if (each->reclaim_ != &retired_object::reclaim_owner) return false;
    auto const& its = static_cast<retired_object const&>(*each);
    return its.type_ != nullptr && its.type_->owns(its.storage_, object, or_points);
  });
}

kept_sets::~kept_sets() {
  std::lock_guard const lock(mutex_);  // a program's ThreadSanitizer sees it
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

reference_sets kept_sets::release() noexcept {
  std::lock_guard const lock(mutex_);
  is_released_ = true;
  return std::exchange(sets_, {});
}

std::size_t kept_sets::leak() noexcept {
  std::size_t members = 0;
  for (ref<reference_set>& each : release()) {
    reference_set& leaked = *each.release();  // the registry knows it
    members += leaked.size();
    for (std::size_t i = 0; i < leaked.size(); ++i) leaked.accounts().count_leaked();
  }
  return members;
}

void release_object(cudaUserObject_t object, deleter_accounts& its) noexcept {
  cudaError_t const status = retry_cleanup([object] { return cudaUserObjectRelease(object, 1); });
  if (status == cudaSuccess || is_sticky(status)) return;  // after a fault the status says nothing
  its.count_leaked();
  its.report(status, "cudaUserObjectRelease");
}

resource_usage resource_usage_of(std::vector<reclaimable const*> members, bool with_arenas) {
  // Sets may share members and slots, and a graph with the same child twice has its sets twice.
  auto const identity = [](reclaimable const* each) -> void const* {
    return each->is_slot() ? static_cast<slot_reference const*>(each)->slot_address() : each;
  };
  std::ranges::sort(members, std::less<>(), identity);
  auto const is_same = [&](auto* one, auto* other) { return identity(one) == identity(other); };
  members.erase(std::unique(members.begin(), members.end(), is_same), members.end());
  resource_usage sum;
  std::map<void const*, std::size_t> extents;
  for (reclaimable const* const each : members) {
    ++(each->is_slot() ? sum.slots : sum.owners);
    if (!each->is_slot()) continue;
    auto const& its = *static_cast<slot_reference const*>(each);
    sum.bytes += its.bytes();
    auto const [arena, end] = its.range();
    if (arena != nullptr && with_arenas) extents[arena] = std::max(extents[arena], end);
  }
  for (auto const& [arena, extent] : extents) sum.bytes += extent;
  return sum;
}

resource_usage resource_usage_of(deferred_releases const& held) {
  std::vector<reclaimable const*> members;
  for (auto const& each : held) each.set->list_members(members);
  return resource_usage_of(std::move(members));
}

}  // namespace escrow::inline v0_2
