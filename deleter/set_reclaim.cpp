// SPDX-License-Identifier: Apache-2.0
// How a set is reclaimed: after the last launch, by the recycle lane, then by the worker.
#include <atomic>
#include <memory>
#include <utility>

#include "escrow/internal/deleter_core.hpp"
#include "escrow/internal/graph_registry.hpp"
#include "escrow/internal/reference_set.hpp"

namespace escrow::inline v0_2 {

void reference_set::reclaim_set(reclaimable& thing) noexcept {
  auto& set = static_cast<reference_set&>(thing);
  set.is_recycled_ ? set.destroy() : set.recycle();
}

// Any thread, under the recycle lane's lock: slots return to their pools, owners are collected.
void reference_set::recycle() noexcept {
  is_recycled_ = true;
  graph_registry::global().forget_set(*this);
  for (; !members_.empty(); members_.pop_back()) {  // newest first: this links owners oldest first
    reclaimable& member = *members_.back().release();
    if (!member.drop_ref_only()) continue;  // other sets have it
    member.drop_companions();
    if (!member.is_slot()) {
      member.next_ = std::exchange(owners_, &member);
      continue;
    }
    member.reclaim_(member);
    core().count_reclaimed();
  }
  // Also without owners: ~reference_set may destroy the event of its last launch.
  core().push_to(*this, release_lane::destroy);
}

// The worker.
void reference_set::destroy() noexcept {
  deleter_core& its_core = core();
  while (owners_ != nullptr) {
    reclaimable& owner = *owners_;
    owners_ = std::exchange(owner.next_, nullptr);
    its_core.reclaim_next(owner);
  }
  its_core.queue_of(release_lane::destroy).cancel_place();
  graph_registry::global().remove_set(*this);
  delete this;
}

void deferred_release::drop() noexcept {
  if (set && of_unknown_launches) graph_registry::global().note_hoisted(*this, false);
  // Relaxed: see reference_set::is_given_up().
  if (set && is_given_up) set->given_up_.fetch_sub(1, std::memory_order_relaxed);
  set = {};
}

void deferred_release::give_up() noexcept {
  if (!std::exchange(is_given_up, true)) set->given_up_.fetch_add(1, std::memory_order_relaxed);
}

deferred_releases hold_all(reference_sets const& sets) {
  deferred_releases held;
  for (auto const& each : sets) held.emplace_back(*each);
  return held;
}

void leak(deferred_releases held) noexcept {
  for (deferred_release& each : held) each.set.release()->accounts().count_leaked();
}

void release_after(deferred_releases held, std::shared_ptr<launch_end> const& end) noexcept {
  for (deferred_release& each : held) {
    each.end = end;
    each.give_up();
  }
  while (!held.empty()) {
    deleter_core& core = held.front().set->core();
    deferred_releases its;  // together, so that the end is asked about once
    for (auto each = held.begin(); each != held.end();) {
      auto const here = each++;
      if (&here->set->core() == &core) its.splice(its.end(), held, here);
    }
    core.defer(std::move(its));
  }
}

}  // namespace escrow::inline v0_2
