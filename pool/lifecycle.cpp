// Creation and end of pools and slots, and waits for returning slots.
#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>

#include "escrow/core/error.hpp"
#include "escrow/detail/deleter_core.hpp"
#include "escrow/internal/device.hpp"
#include "escrow/internal/ready_event.hpp"
#include "escrow/internal/reference_set.hpp"
#include "slot_pool_state.hpp"

namespace escrow::inline v0_1 {

slot_pool::slot_pool(pool_options const& options, make_function make, deleter_core* core) {
  int devices = 0;
  check(cudaGetDeviceCount(&devices), "cudaGetDeviceCount");
  pool_options own = options;
  if (own.device == -1) own.device = current_device();
  bool const is_device = own.device >= 0 && own.device < devices;
  if (!is_device) throw cuda_error(cudaErrorInvalidDevice, "cudaSetDevice");
  if (core == nullptr) core = &(own.deleter != nullptr ? *own.deleter : deleter::global()).core();
  state_ = std::make_unique<state>(*this, std::move(own), std::move(make), *core, devices);
  state_->bind_group();  // last: a group stays bound
  core->add_use();
}

void slot_pool::state::bind_group() {
  if (!options.group) return;
  group_order& order = *options.group->order();
  int of_group = -1;
  // Relaxed: only the value matters.
  if (order.device.compare_exchange_strong(of_group, options.device, std::memory_order_relaxed) ||
      of_group == options.device) {
    return;
  }
  throw usage_error("pool_options::group",
                    "\"" + options.label + "\" is of device " + std::to_string(options.device) +
                        ", the sharing group \"" + order.options.label + "\" of device " +
                        std::to_string(of_group),
                    "use a group for each device");
}

slot_pool::~slot_pool() = default;

void slot_pool::share(std::shared_ptr<memory_budget> budget, std::size_t slot_bytes) noexcept {
  state_->budget = std::move(budget);
  state_->slot_bytes = slot_bytes;
}

int slot_pool::device() const noexcept {
  return state_->options.device;
}

std::string const& slot_pool::label() const noexcept {
  return state_->options.label;
}

deleter_core& slot_pool::core() const noexcept {
  return state_->core;
}

bool slot_pool::has_busy() const noexcept {
  free_lists const& free = state_->free;
  // Twice: what leaves the lists, or comes to them, between two looks. Acquire: see shrinking.
  return free.looked_at.load(std::memory_order_acquire) != 0 || free.lists() != 0 ||
         free.looked_at.load(std::memory_order_relaxed) != 0;
}

std::uint64_t slot_pool::puts() const noexcept {
  return state_->free.count().puts;
}

void slot_pool::close() noexcept {
  state_->is_closed.store(true, std::memory_order_relaxed);  // see there
  state_->free.close();
  state_->close_local_slots();
  while (slot* const idle = state_->free.take_oldest()) state_->destroy(*idle);
}

std::vector<holder> slot_pool::close_for(std::chrono::nanoseconds timeout) {
  state& in = *state_;
  close();
  {
    state::host_wait wait;
    while (in.slots.load(std::memory_order_relaxed) != 0) {
      in.core.recycle();
      if (!wait.go_on(timeout)) break;
    }
  }
  return holders();
}

void slot_pool::close_and_leave() noexcept {
  close();
  state& in = *state_;
  slot* next = nullptr;
  {
    std::lock_guard const lock(in.deferred_mutex);
    next = std::exchange(in.deferred, nullptr);
    in.deferred_is_closed = true;
  }
  while (next != nullptr) {
    slot& unknown = *std::exchange(next, next->newer_);
    in.budget->deferred.fetch_sub(1, std::memory_order_relaxed);
    in.leak(unknown);
  }
  in.drop_reference();
}

bool slot_pool::state::host_wait::go_on(std::chrono::nanoseconds max) {
  constexpr std::chrono::nanoseconds look_again_max = std::chrono::microseconds(200);
  auto const left = max - (clock::now() - begin_);
  if (left <= std::chrono::nanoseconds(0)) return false;
  std::this_thread::sleep_for(std::min(left, look_again_));
  look_again_ = std::min(2 * look_again_, look_again_max);
  return true;
}

cached_event::~cached_event() {
  if (recorded) event_cache::put(device, std::move(recorded));
}

void cached_event::make() {
  if (!recorded) recorded = event_cache::take(device);
}

slot::slot(slot_pool& pool)
    : reclaimable(pool.core(), release_lane::destroy, pool.device(), &slot_pool::destroy_slot),
      pool_(pool),
      ready_(pool.device()),
      first_hold_(pool.core(), pool.device(), *this) {
  ready_.make();
  unrecorded_.reserve(2);
  also_ready_.reserve(2);
}

slot::~slot() = default;

void slot_pool::state::destroy(slot& idle) noexcept {
  slots.fetch_sub(1, std::memory_order_release);  // see there
  if (!idle.is_done_) idle.reclaim_after(idle.ready(), {});
  idle.push();
}

void slot_pool::state::leak(slot& unknown) noexcept {
  deleter_core::leak(unknown);
  give_back();
  slots.fetch_sub(1, std::memory_order_release);  // see there
}

void slot_pool::destroy_slot(reclaimable& thing) noexcept {
  auto& idle = static_cast<slot&>(thing);
  // A graph may have held it last, and CUDA may have released it too early.
  state& of = *idle.pool_.state_;
  if (may_work_go_on_untold()) {
    of.give_back();
    return deleter_core::leak(idle);
  }
  for (; !idle.also_ready_.empty(); idle.also_ready_.pop_back()) {
    cudaEvent_t const other = idle.also_ready_.back().recorded.get();
    cudaError_t const status = cudaEventQuery(other);
    if (!succeeded(status) && answer_of(status) != ready_answer::done) {
      return idle.reclaim_again_after(other);
    }
  }
  delete &idle;
  of.give_back();
  of.drop_reference();
}

std::size_t slot_pool::destroy_done(std::size_t count_max) {
  state& in = *state_;
  device_scope const device(in.options.device);
  relaxed_capture_scope const relaxed;
  std::uint64_t const pass = in.next_pass();
  std::size_t count = 0;
  for (; count < count_max; ++count) {
    slot* done = nullptr;
    {
      state::shrinking const listed(in);
      done = in.take_done(pass);
      if (done == nullptr) break;
      in.slots.fetch_sub(1, std::memory_order_release);  // see there
    }
    destroy_slot(*done);
  }
  return count;
}

void slot_pool::retire_unused() noexcept {
  state& in = *state_;
  in.ask_for_local_slots();  // what is not used by the next call is unused then
  std::uint64_t const now = in.releases.load(std::memory_order_relaxed);
  std::uint64_t const last = in.releases_seen.exchange(now, std::memory_order_relaxed);
  while (true) {
    state::shrinking const listed(in);
    slot* const unused = in.free.take_oldest(last);
    if (unused == nullptr) return;
    in.destroy(*unused);
  }
}

void slot_pool::state::drop_reference() noexcept {
  // acq_rel: all holders' work on the pool happens before its end.
  if (references.fetch_sub(1, std::memory_order_acq_rel) == 1) end_on_worker.push();
}

}  // namespace escrow::inline v0_1
