// SPDX-License-Identifier: Apache-2.0
// A reclaimable's path from push() to the worker, and the statistics.
#include "escrow/internal/deleter_core.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "escrow/detail/reclaimable.hpp"
#include "escrow/internal/device.hpp"

namespace escrow::inline v0_2 {

namespace {

// Ordered intervals, long enough for the worker to sleep.
deleter_options in_order(deleter_options options) {
  options.poll_interval_min = std::max(options.poll_interval_min, std::chrono::microseconds(1));
  options.poll_interval_max = std::max(options.poll_interval_max, options.poll_interval_min);
  return options;
}

}  // namespace

deleter_accounts& reclaimable::accounts() const noexcept {
  return *core_;
}

reclaimable::reclaimable(deleter_core& core, release_lane lane, int device,
                         reclaim_function reclaim)
    : core_(&core), reclaim_(reclaim), device_(device), lane_(lane) {
  core.queue_of(lane).reserve_places(1);
  core.add_use();
}

reclaimable::reclaimable(place_is_reserved /*reserved*/, deleter_core& core, release_lane lane,
                         int device, reclaim_function reclaim) noexcept
    : core_(&core), reclaim_(reclaim), device_(device), lane_(lane) {
  core.add_use();
}

reclaimable::~reclaimable() {
  core_->queue_of(lane_).cancel_place();
  core_->drop_use();
}

void reclaimable::push() noexcept {
  epoch_ = core_->epoch_of_push();
  core_->push_to(*this, lane_);
}

void reclaimable::reclaim_again_after(cudaEvent_t ready) noexcept {
  ready_ = ready;
  core_->waiting_.add(*this);
  core_->is_postponed_ = true;
}

void retired_object::give_back::operator()(retired_object* unused) const noexcept {
  unused->drop_companions();
  unused->clear();
  unused->reclaim_after(nullptr, {});
  unused->core().put_retired_object(*unused);
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
    // CUDA may have released it too early.
    if (may_work_go_on_untold()) return deleter_core::leak(owner);
  }
  owner.core().clear_covered(owner);
  owner.core().put_after_pass(owner);
}

deleter_core::deleter_core(deleter_options options) : options_(in_order(std::move(options))) {
  set_on_error(options_.on_error);
  // From here on the worker and destroy callbacks may run this code at any time.
  pin_this_module();
  watch_for_exit();
}

constinit std::array<use_clock::number, use_clock::count> use_clock::numbers_{};

deleter_core::~deleter_core() = default;

void deleter_core::drop_use() noexcept {
  // The worker may free the core once the use is dropped; the wakeup remains. Notify it, because a
  // worker without a deleter sleeps, too.
  wakeup& bell = *bell_;
  static_cast<void>(drop_one(uses_));
  bell.notify();
}

void deleter_core::push_to(reclaimable& thing, release_lane lane) noexcept {
  // Once queued, the thing and the core may be destroyed; the wakeup remains.
  wakeup& bell = *bell_;
  queue_of(lane).push(thing);
  bell.notify();
}

void deleter_core::reclaim_next(reclaimable& owner) noexcept {
  owner.epoch_ = pass_epoch_;
  ready_.push_back(owner);
}

void deleter_core::defer(deferred_releases waiting) noexcept {
  wakeup& bell = *bell_;  // remains when the last release frees the core
  recycled_.defer(std::move(waiting), epoch_of_push());
  bell.notify();
}

void deleter_core::push_retired(retired_object& retired) noexcept {
  retired.epoch_ = epoch_of_push();
  wakeup& bell = *bell_;
  if (store_.push(retired)) bell.notify();
}

void deleter_core::note_unpolled() noexcept {
  // Relaxed: a count, and whoever counts the last one tells.
  if (is_polled_.load(std::memory_order_relaxed)) return;
  if (unpolled_.fetch_add(1, std::memory_order_relaxed) + 1 != unpolled_told) return;
  try {
    throw usage_error("deleter::retire",
                      std::to_string(unpolled_told) +
                          " owners wait, and nothing has called poll() yet: the deleter has no "
                          "worker (deleter_options::own_worker)",
                      "poll() it, e.g. once in each turn of your loop, or let it have a worker");
  } catch (std::exception const& error) {
    report(error);
  }
}

// A link option (-z nodelete) would reach only users of CMake.
bool pin_module_of(void (*code)() noexcept) noexcept {
  Dl_info found{};
  // Not found: a statically linked program, from which nothing is unloaded.
  if (dladdr(reinterpret_cast<void*>(code), &found) == 0) return false;
  // By the name it was loaded under, so no file is opened. Null for a program, which stays loaded.
  return dlopen(found.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE) != nullptr;
}

}  // namespace escrow::inline v0_2
