// The shelves, and the end of an owner.
#include "object_store.hpp"

#include <algorithm>
#include <mutex>
#include <utility>

#include "escrow/detail/deleter_core.hpp"
#include "escrow/detail/device.hpp"
#include "escrow/detail/ready_event.hpp"

namespace escrow {

namespace {

// Starts to fetch the object into the cache, to be written.
void prefetch(reclaimable const& next) noexcept {
  for (std::size_t line = 0; line < sizeof(retired_object); line += 64) {
    __builtin_prefetch(reinterpret_cast<std::byte const*>(&next) + line, 1);
  }
}

}  // namespace

retired_object::retired_object(deleter_core& core)
    : reclaimable(core, release_lane::destroy, -1, &reclaim_owner) {}

retired_object::~retired_object() {
  clear();
  if (own_event_) event_cache::put(event_device_, std::move(own_event_));
}

void retired_object::enter_graph() noexcept {
  in_graph_ = true;
  core().count_in_graphs(+1);
}

void retired_object::reclaim_owner(reclaimable& thing) noexcept {
  auto& owner = static_cast<retired_object&>(thing);
  if (owner.in_graph_) {
    owner.in_graph_ = false;
    owner.core().count_in_graphs(-1);
    // CUDA released it, perhaps too early.
    if (may_work_go_on_untold()) return deleter_core::leak(owner);
  }
  owner.clear();
  owner.core().put_after_pass(owner);
}

retired_object& object_store::take(std::uint64_t stream, bool with_event) {
  auto const index = static_cast<std::uint8_t>(stream % shelf_count);
  shelf& from = shelves_[index];
  retired_object* taken = nullptr;
  {
    std::lock_guard const lock(from.lock);
    taken = static_cast<retired_object*>(from.idle.pop_front());
    // The worker had the next one last: it is fetched while CUDA records the event of this one.
    if (reclaimable* const next = from.idle.front()) prefetch(*next);
  }
  if (taken == nullptr) taken = new retired_object(core_);
  taken->shelf_ = index;
  if (with_event && !taken->own_event_) {
    try {
      int const device = current_device();
      taken->own_event_ = event_cache::take(device);
      taken->event_device_ = static_cast<std::int16_t>(device);
    } catch (...) {
      put(*taken);
      throw;
    }
  }
  return *taken;
}

bool object_store::push(retired_object& retired) noexcept {
  shelf& its = shelves_[retired.shelf_];
  std::lock_guard const lock(its.lock);
  bool const was_empty = its.retired.empty();
  its.retired.push_back(retired);
  // Relaxed: see has_retired.
  if (was_empty) its.has_retired.store(true, std::memory_order_relaxed);
  return was_empty;  // the thread that pushed the first wakes the worker, which takes all at once
}

void object_store::put(retired_object& idle) noexcept {
  shelf& its = shelves_[idle.shelf_];
  std::lock_guard const lock(its.lock);
  its.idle.push_back(idle);
}

void object_store::put_after_pass(retired_object& idle) noexcept {
  shelves_[idle.shelf_].emptied.push_back(idle);
}

void object_store::shelve_emptied() noexcept {
  for (shelf& each : shelves_) {
    if (each.emptied.empty()) continue;
    release_list excess;
    {
      std::lock_guard const lock(each.lock);
      each.idle.splice_back(each.emptied);
      while (each.idle.size() > idle_max) excess.push_back(*each.idle.pop_front());
    }
    destroy_all(excess);
  }
}

bool object_store::has_retired() const noexcept {
  return std::ranges::any_of(shelves_, [](shelf const& each) {
    // Relaxed: see has_retired.
    return each.has_retired.load(std::memory_order_relaxed);
  });
}

release_list object_store::take_retired() noexcept {
  release_list all;
  for (shelf& each : shelves_) {
    std::lock_guard const lock(each.lock);
    all.splice_back(each.retired);
    each.has_retired.store(false, std::memory_order_relaxed);
  }
  return all;
}

void object_store::destroy_all(release_list& idle) noexcept {
  while (reclaimable* const each = idle.pop_front()) delete static_cast<retired_object*>(each);
}

void object_store::trim() noexcept {
  for (shelf& each : shelves_) {
    release_list idle;
    {
      std::lock_guard const lock(each.lock);
      idle.splice_back(each.idle);
    }
    destroy_all(idle);
  }
}

}  // namespace escrow
