// Claims and releases of one stream without events, by a claimer or by the pool itself.
#include "local_slots.hpp"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>
#include <utility>

#include "escrow/core/capture.hpp"
#include "escrow/core/error.hpp"
#include "escrow/internal/device.hpp"
#include "escrow/internal/driver.hpp"
#include "slot_pool_state.hpp"

namespace escrow::inline v0_1 {

claimed_slot slot_pool::state::claim_local(local_slots& from, stream_use const& on,
                                           claim_request const& asked, size_class& of) {
  bool is_given = false;
  if (has_asked(from)) [[unlikely]] {
    for_each_size([&](size_class& each) { is_given |= give_all(each, on) && &each == &of; });
  }
  claimed_slot claimed;
  if (slot* const own = from.take()) [[likely]] {
    claimed = leased(*own, on, asked.where);
  } else {
    claimed = claim_eager(asked, of, on.id);
    // What this claim asked for itself, it does not answer.
    from.requests_seen.store(requests.load(std::memory_order_relaxed), std::memory_order_relaxed);
  }
  if (!is_given) claimed.local = &from;  // else its release gives this one, too
  return claimed;
}

bool slot_pool::state::release_local(claimed_slot& lease) {
  require_stream("lease::release", lease.on);
  slot& used = *lease.what;
  std::size_t const idle_max = used.of_.local_idle_max.load(std::memory_order_relaxed);
  // Work on other streams, or a graph, needs an event or the graph's release.
  if (!used.unrecorded_.empty() || used.may_be_in_graphs_) return false;
  // Cheaper than query_capture(), which the other way of the release asks.
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  cudaError_t const status = query_is_capturing(lease.on.handle, capture);
  if (status == cudaErrorStreamCaptureImplicit && lease.on.handle == cudaStreamLegacy)
      [[unlikely]] {
    detail::clear_last_error(status);
    return false;
  }
  check(status, "cudaStreamIsCapturing");
  if (capture != cudaStreamCaptureStatusNone) return false;
  record_deferred(lease.on.handle, lease.on.id);
  untrack(used);  // before the slot may have a new lease
  used.is_done_ = false;
  used.is_uncovered_ = true;
  used.was_used_ = true;
  if (!used.also_ready_.empty()) [[unlikely]]
    used.also_ready_.clear();  // the stream waited for them
  // A closed pool waits for its slots. Relaxed: see state::is_closed.
  bool const is_awaited = has_asked(*lease.local) || is_closed.load(std::memory_order_relaxed);
  if (!is_awaited && lease.local->put(used, lease.on.id, idle_max)) [[likely]] {
    lease.what = nullptr;  // it may have a new lease, or have ended the pool
    return true;
  }
  slot* const oldest = lease.local->take_all_of(lease.on.id, &used);
  if (oldest == &used) {
    track(used);
    return false;
  }
  lease.what = nullptr;
  cover(oldest, lease.on, true);
  return true;
}

void slot_pool::state::refuse_destroyed(char const* call, stream_use const& on) const {
  // A null stream or that of a thread never is.
  if (on.id == 0 || is_ambiguous(on.handle) || is_reclaiming()) return;
  capture_info capture;  // which the query for the id would invalidate
  cudaError_t const status = query_recordable(on.handle, capture);
  if (succeeded(status) ? !capture.is_none() || !is_destroyed(on)
                        : status != cudaErrorInvalidResourceHandle) {
    return;
  }
  throw usage_error(call, "the stream of a claimer of \"" + options.label + "\" was destroyed",
                    "destroy the claimer and its leases before the stream");
}

local_slots& slot_pool::state::local_of(size_class& of, stream_use const& on,
                                        claim_request const& asked) {
  std::atomic<local_slots*>& first = of.by_stream[on.id % of.by_stream.size()];
  auto const find = [&](local_slots* each) {
    while (each != nullptr && each->of_stream.id != on.id) each = each->chained;
    return each;
  };
  if (local_slots* const known = find(first.load(std::memory_order_acquire))) return *known;
  require_device(asked.call, asked.stream, {});
  std::lock_guard const lock(of.locals_mutex);
  local_slots* const newest = first.load(std::memory_order_relaxed);  // written under the lock
  if (local_slots* const known = find(newest)) return *known;
  local_slots& made = of.locals.emplace_front(of.local_left);
  made.of_stream = on;
  made.chained = newest;
  // Relaxed: if it was closed before close_local_slots() had the lock, this sees it.
  if (!is_closed.load(std::memory_order_relaxed)) made.begin(on.id);
  divide_idle(of, of.local_users + 1);
  first.store(&made, std::memory_order_release);
  return made;
}

void slot_pool::state::divide_idle(size_class& of, std::size_t users) const noexcept {
  std::size_t const share = local_slots_max() / std::max<std::size_t>(users, 1);
  of.local_users.store(users, std::memory_order_relaxed);
  of.local_idle_max.store(std::min(options.unrecorded_max, share), std::memory_order_relaxed);
}

bool slot_pool::state::give_all(size_class& of, stream_use const& on) noexcept {
  // Relaxed: see there.
  if (of.local_users.load(std::memory_order_relaxed) == 0) return false;
  slot* found = nullptr;
  {
    std::lock_guard const lock(of.locals_mutex);
    for (local_slots& each : of.locals) {
      if (each.idle() != 0) found = each.take_all_of(on.id, found);
    }
  }
  cover(found, on, true);
  return found != nullptr;
}

void slot_pool::state::close_local_slots(size_class& of) noexcept {
  { std::lock_guard const lock(of.locals_mutex); }  // those that are added later see is_closed
  for (std::atomic<local_slots*> const& first : of.by_stream) {
    for (local_slots* each = first.load(std::memory_order_acquire); each != nullptr;
         each = each->chained) {
      cover(each->end(), each->of_stream, false);
    }
  }
}

claimer_slots::claimer_slots(char const* call, slot_pool& pool, stream_ref stream,
                             source_location where, std::size_t bytes)
    : on_(use_of(stream, 0, pool.device())) {
  detail::called_at(call, where, [&] {
    slot_pool::state& in = *pool.state_;
    size_class& of = in.size_for(call, bytes, stream);
    in.require_open(call, of, stream);
    capture_info const capture = usable_capture_of(call, stream);
    in.require_device(call, stream, capture);
    std::lock_guard const lock(of.locals_mutex);
    auto const spare = std::ranges::find(of.locals, true, &local_slots::is_spare);
    local_ = spare != of.locals.end() ? &*spare : &of.locals.emplace_front(of.local_left);
    local_->is_spare = false;
    local_->of_stream = on_;
    in.divide_idle(of, of.local_users + 1);
    // Relaxed: the owner has one.
    in.references.fetch_add(1, std::memory_order_relaxed);
    pool_ = &pool;
    of_ = &of;
  });
}

claimer_slots::claimer_slots(claimer_slots&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)),
      of_(other.of_),
      local_(other.local_),
      on_(other.on_) {}

claimer_slots& claimer_slots::operator=(claimer_slots&& other) noexcept {
  claimer_slots taken(std::move(other));
  std::swap(pool_, taken.pool_);
  std::swap(of_, taken.of_);
  std::swap(local_, taken.local_);
  std::swap(on_, taken.on_);
  return *this;
}

claimer_slots::~claimer_slots() {
  if (pool_ == nullptr) return;
  slot_pool::state& in = *pool_->state_;
  in.cover(local_->end(), on_, false);
  {
    std::lock_guard const lock(of_->locals_mutex);
    local_->is_spare = true;
    in.divide_idle(*of_, of_->local_users - 1);
  }
  in.drop_reference();
}

void claimer_slots::refuse_moved_from(char const* call) {
  throw usage_error(call, "the claimer was moved from", "use the one that it was moved to");
}

slot_pool& claimer_slots::require_pool(char const* call) const {
  if (pool_ == nullptr) refuse_moved_from(call);
  if (is_other_thread(on_)) {
    throw usage_error(call, "cudaStreamPerThread names another stream on this thread",
                      "make a claimer on each thread");
  }
  return *pool_;
}

claimed_slot claimer_slots::claim(char const* call, source_location where,
                                  std::optional<std::chrono::nanoseconds> host_wait_max,
                                  std::size_t bytes, claim_kind kind) {
  return detail::called_at(call, where, [&] {
    slot_pool::state& in = *require_pool(call).state_;
    std::optional<device_scope> device;
    if (is_ambiguous(on_.handle)) device.emplace(on_.device);
    in.require_stream(call, on_);
    in.require_open(call, *of_, on_.handle);
    in.retire_unused();
    claim_request const asked{call, on_.handle, where, host_wait_max, bytes, kind};
    detail::capture_dependencies after;
    capture_info const capture = usable_capture_of(call, on_.handle, &after);
    if (capture.is_active())
      return in.claim_slowly(asked, *of_, 0, capture, capture_frontier(after));
    learn_id();
    in.record_deferred(on_.handle, on_.id);
    if (in.kind_of(asked) == claim_kind::for_host) {
      return in.claim_slowly(asked, *of_, on_.id, {}, {});
    }
    return in.claim_local(*local_, on_, asked, *of_);
  });
}

void claimer_slots::learn_id() {
  if (on_.id != 0) [[likely]]
    return;
  std::uint64_t const id = stream_id(on_.handle);
  local_->begin(id);
  on_.id = id;
}

void claimer_slots::flush(char const* call, source_location where) {
  detail::called_at(call, where, [&] {
    slot_pool::state& in = *require_pool(call).state_;
    std::optional<device_scope> device;
    if (is_ambiguous(on_.handle)) device.emplace(on_.device);
    in.require_stream(call, on_);
    if (!usable_capture_of(call, on_.handle).is_none()) {
      throw usage_error(call, "the claimer's stream is being captured",
                        "flush before the capture begins or after it ended");
    }
    learn_id();
    in.record_deferred(on_.handle, on_.id);
    in.cover(local_->take_all_of(on_.id), on_, true);
  });
}

}  // namespace escrow::inline v0_1
