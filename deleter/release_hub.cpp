// The hub: the way of a node from push() to the worker, and the store of nodes for owners.
#include "escrow/deleter/release_hub.hpp"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <utility>

#include "escrow/core/error.hpp"
#include "escrow/detail/device.hpp"
#include "escrow/detail/ready_event.hpp"
#include "owner_block.hpp"
#include "pin_module.hpp"
#include "release_hub_state.hpp"

namespace escrow {

namespace {

// Intervals that are in order, and not so short that the worker would never rest.
deleter_options in_order(deleter_options options) {
  options.poll_interval_min = std::max(options.poll_interval_min, std::chrono::microseconds(1));
  options.poll_interval_max = std::max(options.poll_interval_max, options.poll_interval_min);
  return options;
}

void destroy_all(release_list& owners) noexcept {
  while (release_node* const node = owners.pop_front()) {
    owner_block::destroy(static_cast<retired_owner&>(*node));
  }
}

}  // namespace

release_hub::release_hub(deleter_options options)
    : state_(std::make_unique<state>(*this, in_order(std::move(options)))) {
  // The worker and the destroy callbacks, which may run this code at any time, have a hub.
  pin_module();
  worker::watch_for_exit();
}

release_hub::~release_hub() {
  state_->trim();
}

void release_hub::add_use() noexcept {
  // Relaxed: whoever adds a use holds one, or is the deleter's owner.
  state_->uses.fetch_add(1, std::memory_order_relaxed);
}

void release_hub::drop_use() noexcept {
  // The worker may free the hub as soon as the use is gone; the wakeup stays. It is rung because
  // a worker that was left to itself sleeps, too.
  wakeup& bell = *state_->bell;
  state_->uses.fetch_sub(1, std::memory_order_release);
  bell.notify();
}

void release_hub::await(bundle_hold& sent) noexcept {
  state_->awaited.add(sent);
}

void release_hub::reclaim_awaited(bundle_hold& done) noexcept {
  state_->awaited.reclaim(done);
}

bool release_hub::is_open() const noexcept {
  return !state_->refuses.load(std::memory_order_relaxed);  // see there
}

bool release_hub::recycle() noexcept {
  bool const had_turn = state_->awaited.let_go_done();
  std::unique_lock const lock(state_->recycle_mutex, std::try_to_lock);
  if (lock) state_->recycle_locked();
  return had_turn && lock.owns_lock();
}

void release_hub::recycle_after_others() noexcept {
  state_->awaited.let_go_done_after_others();
  state_->recycle_now();
}

void release_hub::state::recycle_now() noexcept {
  std::lock_guard const lock(recycle_mutex);
  recycle_locked();
}

void release_hub::state::recycle_locked() noexcept {
  release_list returned = recycled.take_all();
  while (release_node* const node = returned.pop_front()) {
    node->reclaim_(*node);
    reclaimed.fetch_add(1, std::memory_order_relaxed);
  }
}

retired_owner& release_hub::take_retired_owner(std::uint64_t stream, bool with_event) {
  std::uint8_t const index = state::shelf_index(stream);
  state::shelf& shelf = state_->shelves[index];
  retired_owner* node = nullptr;
  {
    std::lock_guard const lock(shelf.lock);
    node = static_cast<retired_owner*>(shelf.idle.pop_front());
    if (node != nullptr) --shelf.idle_count;
    // The worker had the next node last: it is fetched while CUDA records the event of this one.
    if (release_node* const next = shelf.idle.front())
      static_cast<retired_owner*>(next)->prefetch();
  }
  if (node == nullptr) node = &state_->make_owners(*this, shelf);
  node->shelf_ = index & 31U;
  if (with_event && !node->own_event_) {
    try {
      int const device = current_device();
      node->own_event_ = event_cache::take(device);
      node->event_device_ = static_cast<std::int16_t>(device);
    } catch (...) {
      put_retired_owner(*node);
      throw;
    }
  }
  return *node;
}

retired_owner& release_hub::state::make_owners(release_hub& hub, shelf& of) {
  release_list others;
  retired_owner& first = owner_block::make(hub, destroyed, others);
  std::lock_guard const lock(of.lock);
  for (release_node* each = others.pop_front(); each != nullptr; each = others.pop_front()) {
    of.idle.push_back(*each);
    ++of.idle_count;
  }
  return first;
}

void release_hub::push_retired(retired_owner& node) noexcept {
  state::shelf& shelf = state_->shelves[node.shelf_];
  {
    std::lock_guard const lock(shelf.lock);
    bool const was_empty = shelf.retired.empty();
    shelf.retired.push_back(node);
    if (!was_empty) return;  // who pushed the first rings, and the worker takes all at once
    // Relaxed: see has_retired.
    shelf.has_retired.store(true, std::memory_order_relaxed);
  }
  state_->bell->notify();
}

void release_hub::put_retired_owner(retired_owner& owner) noexcept {
  state::shelf& shelf = state_->shelves[owner.shelf_];
  std::lock_guard const lock(shelf.lock);
  shelf.idle.push_back(owner);
  ++shelf.idle_count;
}

void release_hub::put_after_pass(retired_owner& owner) noexcept {
  state::shelf& shelf = state_->shelves[owner.shelf_];
  shelf.emptied.push_back(owner);
  ++shelf.emptied_count;
}

void release_hub::state::shelve_emptied() noexcept {
  for (shelf& each : shelves) {
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

bool release_hub::state::nothing_arrived() const noexcept {
  return recycled.empty() && destroyed.empty() &&
         std::ranges::none_of(shelves, [](shelf const& each) {
           // Relaxed: see has_retired.
           return each.has_retired.load(std::memory_order_relaxed);
         });
}

release_list release_hub::state::take_retired() noexcept {
  release_list all;
  for (shelf& each : shelves) {
    std::lock_guard const lock(each.lock);
    all.splice_back(each.retired);
    each.has_retired.store(false, std::memory_order_relaxed);
  }
  return all;
}

void release_hub::state::trim() noexcept {
  for (shelf& each : shelves) {
    release_list idle;
    {
      std::lock_guard const lock(each.lock);
      idle.splice_back(each.idle);
      each.idle_count = 0;
    }
    destroy_all(idle);
  }
}

void release_hub::report(std::exception const& error) noexcept {
  state_->errors.fetch_add(1, std::memory_order_relaxed);
  if (!state_->options.on_error) return;
  try {
    state_->options.on_error(error);
  } catch (...) {
    // A handler must not throw; there is nobody else to tell.
  }
}

void release_hub::report(cudaError_t status, char const* api) noexcept {
  try {
    report(cuda_error(status, api));
  } catch (std::bad_alloc const&) {
    state_->errors.fetch_add(1, std::memory_order_relaxed);  // no memory to describe it with
  }
}

void release_hub::keep_for_ever(release_node& unknown) noexcept {
  // In a list, so that a leak checker sees that it is known.
  static std::mutex mutex;  // guards `kept`
  static release_list kept;
  {
    std::lock_guard const lock(mutex);
    kept.push_back(unknown);
  }
  unknown.hub().count_held();
}

void release_hub::count_held() noexcept {
  state_->held.fetch_add(1, std::memory_order_relaxed);
}

void release_hub::count_in_graphs(int change) noexcept {
  state_->in_graphs.fetch_add(change, std::memory_order_relaxed);
}

deleter_stats release_hub::stats() const noexcept {
  return {
      .reclaimed = state_->reclaimed.load(std::memory_order_relaxed),
      .pending = state_->pending.load(std::memory_order_relaxed),
      .in_graphs = static_cast<std::uint64_t>(state_->in_graphs.load(std::memory_order_relaxed)),
      .held = state_->held.load(std::memory_order_relaxed),
      .errors = state_->errors.load(std::memory_order_relaxed),
  };
}

}  // namespace escrow
