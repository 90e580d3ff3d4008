// SPDX-License-Identifier: Apache-2.0
// Creation and end of pools and slots, and waits for returning slots.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <thread>
#include <utility>

#include "device_store.hpp"
#include "escrow/core/error.hpp"
#include "escrow/internal/deleter_core.hpp"
#include "escrow/internal/device.hpp"
#include "escrow/internal/environment.hpp"
#include "escrow/internal/ready_event.hpp"
#include "escrow/internal/reference_set.hpp"
#include "escrow/pool/scratch_pool.hpp"
#include "slot_pool_state.hpp"

namespace escrow::inline v0_2 {

slot_pool::owned slot_pool::create(pool_options const& options, make_function make,
                                   scratch_policy const* policy) {
  return owned(new slot_pool(options, std::move(make), policy));
}

void slot_pool::require_device(char const* what, int device, int devices) {
  if (device >= 0 && device < devices) return;
  throw cuda_error(cudaErrorInvalidDevice, "cudaSetDevice", source_location::current(),
                   std::string(what) + " is " + std::to_string(device) + ", and " +
                       (devices == 1 ? "the only device is 0"
                                     : "the devices are 0 to " + std::to_string(devices - 1)));
}

namespace {
void require_sane(pool_options const& options, scratch_policy const& policy) {
  constexpr char const* call = "pool_options";
  auto const require = [](bool is_right, char const* of, char const* problem, char const* advice) {
    if (!is_right) throw usage_error(of, problem, advice);
  };
  constexpr std::chrono::nanoseconds none{0};
  char const* const at_once = "zero: it does not wait";
  require(options.slots_max != 0, call, "`slots_max` is 0", "give 1 or more, or leave it out: 64");
  require(options.host_wait_max >= none, call, "`host_wait_max` is negative", at_once);
  require(options.capture_wait_max >= none, call, "`capture_wait_max` is negative", at_once);
  require(options.reclaim_wait_max >= none, call, "`reclaim_wait_max` is negative", at_once);
  require(options.deleter == nullptr || options.deleter->is_there(), call,
          "`deleter` is not constructed yet, or has ended", "declare it before the pool");
  constexpr char const* of_policy = "scratch_policy";
  require(policy.idle_max >= none, of_policy, "`idle_max` is negative", "zero: never");
  require(policy.keep_window >= none, of_policy, "`keep_window` is negative", "give a time");
  require(policy.keep_factor >= 1 || policy.keep_factor == 0, of_policy,
          "`keep_factor` is less than 1", "give 1 or more; zero keeps all");
}
}  // namespace

slot_pool::slot_pool(pool_options const& options, make_function make,
                     scratch_policy const* policy) {
  require_sane(options, policy != nullptr ? *policy : scratch_policy{});
  int devices = 0;
  check(cudaGetDeviceCount(&devices), "cudaGetDeviceCount");
  pool_options own = options;
  if (own.device == -1) own.device = current_device();
  own.check_streams |= environment::asked_audits() == environment::audits::on;
  require_device("pool_options::device", own.device, devices);
  deleter_core& core = (own.deleter != nullptr ? *own.deleter : deleter::global()).core();
  state_ = std::make_unique<state>(*this, std::move(own), std::move(make), policy, core, devices);
  state_->bind_group();  // last: a group stays bound
  state_->list();
  core.add_use();
}

slot_pool::state::state(slot_pool& pool, pool_options given, make_function made,
                        scratch_policy const* policy, deleter_core& used, int devices)
    : owner(pool),
      options(std::move(given)),
      slots_max(options.slots_max.value_or(64)),
      source(policy != nullptr ? policy->source.name : ""),
      make(std::move(made)),
      core(used),
      is_only_device(devices == 1),
      is_reused_late(policy != nullptr ? environment::is_memory_reused_late()
                                       : environment::is_reuse_late()),
      is_hosts_reused_late(is_reused_late || environment::asks_guards()),
      is_watched(options.track_leases || environment::asks_guards()),
      is_host_ordered(options.host_ordered ||
                      (policy != nullptr && policy->source.is_host_written.value_or(true))),
      is_memory_unknown(policy != nullptr && !policy->source.is_host_written.has_value()),
      end_on_worker(*this, used, &end),
      sizes(options.label, policy != nullptr ? scratch_pool::bytes_min : 0,
            (policy != nullptr ? *policy : scratch_policy{}).bytes_max),
      bound(policy != nullptr && policy->source.is_cheap_to_free ? policy->keep_factor : 0,
            (policy != nullptr ? *policy : scratch_policy{}).keep_window),
      reuse(options.group ? options.group->order().get() : nullptr),
      in_arena{.may_be =
                   policy != nullptr && policy->source.is_for_arenas && options.group.has_value()},
      of_leases(options.group ? std::make_shared<lease_origin const>(
                                    lease_origin{*options.group->order(), core, options.label,
                                                 options.group->order()->leases})
                              : nullptr),
      unused_max((policy != nullptr ? *policy : scratch_policy{}).idle_max),
      checked_at(std::chrono::steady_clock::now().time_since_epoch()),
      sweep_on_worker(*this, used, &sweep) {}

void slot_pool::state::bind_group() {
  if (!options.group) return;
  group_order& order = *options.group->order();
  order.trim_pools.store(&arena::trim_pools, std::memory_order_relaxed);
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

void slot_pool::refuse_moved_from(char const* call, source_location where) {
  detail::refuse_at(where, call, "the pool was moved from, or destroyed",
                    "use the one that it was moved to");
}

int slot_pool::device() const noexcept {
  return state_->options.device;
}

void slot_pool::close() noexcept {
  state& in = *state_;
  in.sizes.close();
  in.sizes.for_each([&in](size_class& each) {
    each.free.close();
    if (in.options.streams_outlive_pool) in.cover_lasting(each);
    while (slot* const idle = each.free.take_oldest()) in.destroy(*idle);
  });
  if (auto const its = in.known_arena()) its->end_rests(this);
}

std::vector<holder> slot_pool::close_for(std::chrono::nanoseconds timeout) {
  state& in = *state_;
  close();
  in.kept->release();  // the caller says so
  {
    host_wait wait;
    auto const has_slots = [&in] {
      std::size_t sum = 0;
      in.sizes.for_each([&](auto& each) { sum += each.slots.alive() + each.in_arena.alive(); });
      return sum != 0;
    };
    while (has_slots()) {
      in.core.recycle();
      if (!wait.go_on(timeout)) break;
    }
  }
  return holders();
}

void slot_pool::close_and_leave() noexcept {
  close();
  state& in = *state_;
  if (std::size_t const leaked = in.kept->leak(); leaked != 0) {
    in.report_leaked(leaked, state::leak_reason::not_closed);
  }
  slot_list left = in.deferred.close();
  std::size_t leaked = 0;
  slot const* last = nullptr;
  while (slot* const unknown = left.oldest()) {
    left.remove(*unknown);
    in.leak(*unknown);
    last = unknown;
    ++leaked;
  }
  if (leaked != 0) in.report_leaked(leaked, state::leak_reason::not_recorded, last);
  in.drop_reference();
}

bool host_wait::go_on(std::chrono::nanoseconds max) {
  constexpr std::chrono::nanoseconds look_again_max = std::chrono::microseconds(200);
  if (max.count() <= 0) return false;  // also the least of all times, from which nothing is taken
  auto const left = max - (clock::now() - begin_);
  if (left <= std::chrono::nanoseconds(0)) return false;
  std::this_thread::sleep_for(std::min(left, look_again_));
  look_again_ = std::min(2 * look_again_, look_again_max);
  return true;
}

slot::slot(slot_pool& pool, size_class& of, slot_pool::make_function const& make, void* in_arena,
           std::size_t bytes)
    : reclaimable(pool.state_->core, release_lane::destroy, pool.device(),
                  &slot_pool::destroy_slot),
      pool_(pool),
      of_(of),
      ready_(pool.device()),
      first_hold_(core(), pool.device(), *this) {
  ready_.make();
  unrecorded_.reserve(2);
  also_ready_.reserve(2);
  if (in_arena == nullptr) booked_.prepare(of.label);
  made_blocks const made;
  environment::uncounted_work const of_make;  // it may use a stream of its own in a capture
  resource_ = make(of, in_arena, bytes);
  if (in_arena != nullptr) return;
  booked_.add(*resource_, made);
  pool_.state_->look_at(resource_->address);
}

void slot_pool::state::look_at(void const* memory) noexcept {
  if (memory == nullptr || !is_memory_unknown.load(std::memory_order_relaxed)) return;
  cudaPointerAttributes its{};
  if (!succeeded(cudaPointerGetAttributes(&its, memory))) return;  // of the next block, then
  bool const is_hosts = its.type == cudaMemoryTypeHost || its.type == cudaMemoryTypeUnregistered;
  if (!is_hosts && !options.host_ordered) is_host_ordered.store(false, std::memory_order_relaxed);
  is_memory_unknown.store(false, std::memory_order_relaxed);
}

void booked_slot::add(resource_base const& its, made_blocks const& made) noexcept {
  // A scratch_pool's block has its memory until it ends; an object may be given another one.
  if (of_.of_.bytes != 0) {
    memory_book::global().add_slot(std::move(place_), its.address, its.bytes);
    begin_ = its.address;
    return;
  }
  try {
    for (made_blocks::block const& each : made.all) {
      if (!has(each)) continue;
      blocks_.push_back(each);
      memory_book::global().own_block(each.begin, *this, place_.mapped().label);
    }
  } catch (std::bad_alloc const&) {
    // Audits do not find them.
  }
}

bool booked_slot::has(std::uintptr_t block) const noexcept {
  if (begin_ != nullptr) return true;
  return std::ranges::any_of(blocks_, [&](made_blocks::block const& each) {
    return reinterpret_cast<std::uintptr_t>(each.begin) == block && has(each);
  });
}

// An address alone, beside no size, may be a copy of what another object has.
bool booked_slot::has(made_blocks::block const& its) const noexcept {
  std::span<std::byte const> const object = of_.resource_->object;
  std::array<std::size_t, 2> const looked_for{reinterpret_cast<std::uintptr_t>(its.begin),
                                              its.bytes};
  std::size_t const bytes = its.bytes != 0 ? sizeof(looked_for) : sizeof(its.begin);
  for (std::size_t at = 0; at + bytes <= object.size(); at += alignof(void*)) {
    if (std::memcmp(object.data() + at, looked_for.data(), bytes) == 0) return true;
  }
  return false;
}

void booked_slot::tell(known_address& its, std::size_t offset) const noexcept {
  its.slot = &of_;
  its.offset = offset;
  its.used_by = use.load(std::memory_order_relaxed);
  its.lease = lease.load(std::memory_order_relaxed);
  of_.tell_holders(its);
  its.is_scratch = begin_ != nullptr;
  if (begin_ == nullptr || its.used_by == known_address::use::none) return;
  std::size_t const its_used = used.load(std::memory_order_relaxed);
  its.end = of_.resource_->bytes;
  its.used_end = its_used != 0 ? its_used : its.end;
}

void slot::tell_holders(known_address& its) const noexcept {
  pool_.state_->reuse.tell_holders(*this, its);
}

void slot_pool::state::destroy(slot& idle) noexcept {
  idle.of_.count_of(idle).begin_end();
  if (!idle.is_done_) idle.reclaim_after(idle.ready(), {});
  idle.push();
}

void slot_pool::state::leak(slot& unknown) noexcept {
  size_class& of = unknown.of_;
  unknown.end_in_group();
  size_class::end_uncovered(unknown);
  deleter_core::leak(unknown);
  if (unknown.place_ == nullptr) sizes.give_back(of, pool_sizes::end::leaked);
  of.count_of(unknown).remove();
}

void slot_pool::destroy_slot(reclaimable& thing) noexcept {
  auto& idle = static_cast<slot&>(thing);
  // A graph may have held it last, and CUDA may have released it too early.
  state& in = *idle.pool_.state_;
  size_class& of = idle.of_;
  arena_place* const place = idle.place_;
  std::size_t const bytes = idle.bytes_in_arena_;
  slot_count& count = of.count_of(idle);
  if (may_work_go_on_untold()) {
    if (place == nullptr) in.sizes.give_back(of, pool_sizes::end::leaked);
    count.end();
    return deleter_core::leak(idle);
  }
  for (; !idle.also_ready_.empty(); idle.also_ready_.pop_back()) {
    cudaEvent_t const other = idle.also_ready_.back().recorded.get();
    cudaError_t const status = cudaEventQuery(other);
    if (!succeeded(status) && answer_of(status) != ready_answer::done) {
      return idle.reclaim_again_after(other);
    }
  }
  {
    memory_scope::set const known({.is_unused = true});
    delete &idle;
  }
  if (place != nullptr) {
    in.in_arena.bytes.fetch_sub(bytes, std::memory_order_relaxed);
    in.in_arena.its().remove(*place);
  } else {
    in.sizes.give_back(of, pool_sizes::end::destroyed);
  }
  count.end();  // only now: it counts for the limits until its memory is back
  in.drop_reference();
}

void slot_pool::state::end(reclaimable& node) noexcept {
  deleter_core& used = node.core();
  delete &static_cast<worker_node&>(node).of.owner;
  used.drop_use();
}

void slot_pool::state::drop_reference() noexcept {
  if (drop_one(references)) end_on_worker.push();
}

std::vector<std::unique_ptr<slot_pool::state, slot_pool::state::let_go>> slot_pool::state::all() {
  std::vector<std::unique_ptr<state, let_go>> pools;
  hold_all([&](std::size_t most) { pools.reserve(most); },
           [&](listed_pool& each) { pools.emplace_back(&static_cast<state&>(each)); });
  return pools;
}

}  // namespace escrow::inline v0_2
