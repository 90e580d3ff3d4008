// SPDX-License-Identifier: Apache-2.0
// Shelves, and the memory blocks of their objects.
#include "escrow/internal/object_store.hpp"

#include <algorithm>
#include <memory>
#include <mutex>
#include <new>
#include <utility>

#include "escrow/detail/shared_count.hpp"
#include "escrow/internal/device.hpp"
#include "escrow/internal/ready_event.hpp"

namespace escrow::inline v0_2 {

// One allocation for several objects, since aligned ones are slow; freed with the last object.
class object_block {
 public:
  static constexpr std::size_t objects = 8;  // limit of retired_object::place_

  // Makes idle objects with places in `queue`. Throws std::bad_alloc.
  [[nodiscard]] static release_list make(deleter_core& core, release_queue& queue) {
    std::unique_ptr<object_block> made(new object_block);
    queue.reserve_places(objects);
    object_block& block = *made.release();  // freed with its objects from here on
    release_list all;
    for (std::size_t i = 0; i < objects; ++i) {
      void* const place = block.places_ + i * sizeof(retired_object);
      all.push_back(*::new (place) retired_object(reclaimable::place_is_reserved{}, core, i));
    }
    return all;
  }

  static void destroy(retired_object& idle) noexcept {
    auto* const first = reinterpret_cast<std::byte*>(&idle) - idle.place_ * sizeof(retired_object);
    // The places follow `alive_`, at the block's alignment.
    auto* const block =
        std::launder(reinterpret_cast<object_block*>(first - alignof(retired_object)));
    static_assert(sizeof(object_block) ==
                  objects * sizeof(retired_object) + alignof(retired_object));
    idle.~retired_object();
    if (drop_one(block->alive_)) delete block;
  }

 private:
  friend struct std::default_delete<object_block>;

  object_block() = default;
  ~object_block() = default;

  std::atomic<std::uint32_t> alive_{objects};
  alignas(retired_object) std::byte places_[objects * sizeof(retired_object)];
};

namespace {

void prefetch(reclaimable const& next) noexcept {
  for (std::size_t line = 0; line < sizeof(retired_object); line += 64) {
    __builtin_prefetch(reinterpret_cast<std::byte const*>(&next) + line, 1);
  }
}

void destroy_all(release_list& idle) noexcept {
  while (reclaimable* const each = idle.pop_front()) {
    object_block::destroy(static_cast<retired_object&>(*each));
  }
}

}  // namespace

retired_object::retired_object(place_is_reserved reserved, deleter_core& core,
                               std::size_t place) noexcept
    : reclaimable(reserved, core, release_lane::destroy, -1, &reclaim_owner), place_(place & 7U) {}

retired_object::~retired_object() {
  clear();
  if (own_event_) event_cache::put(event_device_, std::move(own_event_));
}

retired_object& object_store::take(deleter_core& core, std::uint64_t stream, bool with_event) {
  auto const index = static_cast<std::uint8_t>(stream % shelf_count);
  shelf& from = shelves_[index];
  retired_object* taken = nullptr;
  {
    std::lock_guard const lock(from.lock);
    taken = static_cast<retired_object*>(from.idle.pop_front());
    if (taken != nullptr) --from.idle_count;
    // The worker used the next one last: prefetch it while CUDA records this one's event.
    if (reclaimable* const next = from.idle.front()) prefetch(*next);
  }
  if (taken == nullptr) taken = &make(core, from);
  taken->shelf_ = index & 31U;
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

retired_object& object_store::make(deleter_core& core, shelf& of) {
  release_list made = object_block::make(core, queue_);
  auto& first = static_cast<retired_object&>(*made.pop_front());
  std::lock_guard const lock(of.lock);
  of.idle.splice_back(made);
  of.idle_count += object_block::objects - 1;
  return first;
}

bool object_store::push(retired_object& retired) noexcept {
  shelf& its = shelves_[retired.shelf_];
  std::lock_guard const lock(its.lock);
  bool const was_empty = its.retired.empty();
  its.retired.push_back(retired);
  // Relaxed: see has_retired.
  if (was_empty) its.has_retired.store(true, std::memory_order_relaxed);
  return was_empty;  // the first wakes the worker, which takes all
}

void object_store::put(retired_object& idle) noexcept {
  shelf& its = shelves_[idle.shelf_];
  std::lock_guard const lock(its.lock);
  its.idle.push_back(idle);
  ++its.idle_count;
}

void object_store::put_after_pass(retired_object& idle) noexcept {
  shelf& its = shelves_[idle.shelf_];
  its.emptied.push_back(idle);
  ++its.emptied_count;
}

void object_store::shelve_emptied() noexcept {
  for (shelf& each : shelves_) {
    if (each.emptied.empty()) continue;
    release_list excess;
    {
      std::lock_guard const lock(each.lock);
      while (each.emptied_count != 0 && each.idle_count + each.emptied_count > idle_max) {
        excess.push_back(*each.emptied.pop_front());
        --each.emptied_count;
      }
      each.idle.splice_back(each.emptied);
      each.idle_count += std::exchange(each.emptied_count, 0);
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

void object_store::trim() noexcept {
  for (shelf& each : shelves_) {
    release_list idle;
    {
      std::lock_guard const lock(each.lock);
      idle.splice_back(each.idle);
      each.idle_count = 0;
    }
    destroy_all(idle);
  }
}

}  // namespace escrow::inline v0_2
