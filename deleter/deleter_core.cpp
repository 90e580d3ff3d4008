// A reclaimable's path from push() to the worker, and the statistics.
#include "escrow/detail/deleter_core.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <new>
#include <utility>

#include "core_state.hpp"
#include "escrow/core/capture.hpp"
#include "escrow/core/error.hpp"
#include "escrow/detail/reclaimable.hpp"

namespace escrow::inline v0_1 {

namespace {

// Ordered intervals, long enough for the worker to sleep.
deleter_options in_order(deleter_options options) {
  options.poll_interval_min = std::max(options.poll_interval_min, std::chrono::microseconds(1));
  options.poll_interval_max = std::max(options.poll_interval_max, options.poll_interval_min);
  return options;
}

}  // namespace

reclaimable::reclaimable(deleter_core& core, release_lane lane, int device,
                         reclaim_function reclaim)
    : core_(&core), reclaim_(reclaim), device_(device), lane_(lane) {
  core.reserve_place(lane);
  core.add_use();
}

reclaimable::reclaimable(place_is_reserved /*reserved*/, deleter_core& core, release_lane lane,
                         int device, reclaim_function reclaim) noexcept
    : core_(&core), reclaim_(reclaim), device_(device), lane_(lane) {
  core.add_use();
}

reclaimable::~reclaimable() {
  core_->cancel_place(lane_);
  core_->drop_use();
}

void reclaimable::push() noexcept {
  epoch_ = core_->state_->epoch_of_push();
  core_->push_to(*this, lane_);
}

void reclaimable::reclaim_again_after(cudaEvent_t ready) noexcept {
  deleter_core::state& state = *core_->state_;
  ready_ = ready;
  state.waiting.add(*this);
  state.is_postponed = true;
}

deleter_core::deleter_core(deleter_options options)
    : state_(std::make_unique<state>(*this, in_order(std::move(options)))) {
  // From here on the worker and destroy callbacks may run this code at any time.
  pin_this_module();
  worker::watch_for_exit();
}

deleter_core::~deleter_core() {
  state_->store.trim();
}

void deleter_core::add_use() noexcept {
  // Relaxed: the caller has a use itself, or is the deleter.
  state_->uses.fetch_add(1, std::memory_order_relaxed);
}

void deleter_core::drop_use() noexcept {
  // The worker may free the core once the use is dropped; the wakeup remains. Notify it, because a
  // worker without a deleter sleeps, too.
  wakeup& bell = *state_->bell;
  state_->uses.fetch_sub(1, std::memory_order_release);
  bell.notify();
}

bool deleter_core::is_open() const noexcept {
  return !state_->refuses.load(std::memory_order_relaxed);  // see there
}

void deleter_core::reserve_place(release_lane lane) {
  state_->queue_of(lane).reserve_places(1);
}

void deleter_core::cancel_place(release_lane lane) noexcept {
  state_->queue_of(lane).cancel_place();
}

void deleter_core::push_to(reclaimable& thing, release_lane lane) noexcept {
  // Once queued, the thing and the core may be destroyed; the wakeup remains.
  wakeup& bell = *state_->bell;
  state_->queue_of(lane).push(thing);
  bell.notify();
}

bool deleter_core::recycle_next(std::uint64_t& last_asked) noexcept {
  bool were_asked = false;
  if (state_->recycled.deferred() != 0) {
    try {
      relaxed_capture_scope const relaxed;  // a query could invalidate a capture
      were_asked = state_->recycled.release_done(last_asked, nullptr);
    } catch (std::exception const&) {
      // The worker will query them.
    }
  }
  recycle_queued();  // also what another thread found done
  return were_asked;
}

void deleter_core::recycle() noexcept {
  recycle_queued();
  std::uint64_t last_asked = 0;
  while (recycle_next(last_asked)) {
  }
}

void deleter_core::recycle_queued() noexcept {
  state_->recycled.recycle_queued();
}

void deleter_core::count_reclaimed() noexcept {
  state_->reclaimed.fetch_add(1, std::memory_order_relaxed);
}

void deleter_core::reclaim_next(reclaimable& owner) noexcept {
  if (!owner.drop_ref_only()) return;
  owner.epoch_ = state_->pass_epoch;
  state_->ready.push_back(owner);
}

void deleter_core::defer(std::list<deferred_release> waiting) noexcept {
  wakeup& bell = *state_->bell;  // remains when the last release frees the core
  state_->recycled.defer(std::move(waiting), state_->epoch_of_push());
  bell.notify();
}

retired_object& deleter_core::take_retired_object(std::uint64_t stream, bool with_event) {
  return state_->store.take(stream, with_event);
}

void deleter_core::push_retired(retired_object& retired) noexcept {
  retired.epoch_ = state_->epoch_of_push();
  wakeup& bell = *state_->bell;
  if (state_->store.push(retired)) bell.notify();
}

void deleter_core::put_retired_object(retired_object& idle) noexcept {
  state_->store.put(idle);
}

void deleter_core::put_after_pass(retired_object& idle) noexcept {
  state_->store.put_after_pass(idle);
}

void deleter_core::state::set_on_error(error_handler handler) {
  std::shared_ptr<error_handler> next;
  if (handler) next = std::make_shared<error_handler>(std::move(handler));
  std::lock_guard const lock(on_error_mutex);
  on_error.swap(next);  // the previous one is destroyed after unlocking
}

void deleter_core::report(std::exception const& error) noexcept {
  state_->errors.fetch_add(1, std::memory_order_relaxed);
  std::shared_ptr<state::error_handler> handler;
  {
    std::lock_guard const lock(state_->on_error_mutex);
    handler = state_->on_error;
  }
  if (handler == nullptr) return;
  try {
    (*handler)(error);
  } catch (...) {
    // Dropped: a handler must not throw.
  }
}

void deleter_core::report(cudaError_t status, char const* api) noexcept {
  try {
    report(cuda_error(status, api));
  } catch (std::bad_alloc const&) {
    state_->errors.fetch_add(1, std::memory_order_relaxed);  // no memory for the text
  }
}

void deleter_core::leak(reclaimable& unknown) noexcept {
  // In a list, so that leak checkers find it reachable.
  static constinit std::mutex mutex;  // guards `leaked`
  static constinit release_list leaked;
  {
    std::lock_guard const lock(mutex);
    leaked.push_back(unknown);
  }
  unknown.core().count_leaked();
}

void deleter_core::count_leaked() noexcept {
  state_->leaked.fetch_add(1, std::memory_order_relaxed);
}

void deleter_core::count_in_graphs(int change) noexcept {
  state_->in_graphs.fetch_add(change, std::memory_order_relaxed);
}

deleter_stats deleter_core::stats() const noexcept {
  return {
      .reclaimed = state_->reclaimed.load(std::memory_order_relaxed),
      .pending = state_->pending.load(std::memory_order_relaxed),
      .pending_peak = state_->pending_peak.load(std::memory_order_relaxed),
      .in_graphs = static_cast<std::uint64_t>(state_->in_graphs.load(std::memory_order_relaxed)),
      .leaked = state_->leaked.load(std::memory_order_relaxed),
      .errors = state_->errors.load(std::memory_order_relaxed),
  };
}

// A link option (-z nodelete) would reach only users of CMake.
bool pin_module_of(void (*code)() noexcept) noexcept {
  Dl_info found{};
  // Not found: a statically linked program, from which nothing is unloaded.
  if (dladdr(reinterpret_cast<void*>(code), &found) == 0) return false;
  // By the name it was loaded under, so no file is opened. Null for a program, which stays loaded.
  return dlopen(found.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE) != nullptr;
}

}  // namespace escrow::inline v0_1
