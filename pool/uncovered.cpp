// SPDX-License-Identifier: Apache-2.0
// Claims and releases of one stream without events, by a claimer or by the pool itself.
#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>

#include "claim_search.hpp"
#include "escrow/core/capture.hpp"
#include "escrow/core/error.hpp"
#include "escrow/internal/device.hpp"
#include "escrow/internal/driver.hpp"
#include "escrow/internal/used_alone.hpp"

namespace escrow::inline v0_2 {

claimed_slot slot_pool::state::claim_uncovered(claimer_stream const& by, stream_use const& on,
                                               claim_request const& asked, size_class& of) {
  slot* const own = of.free.take_newest(on.id);
  bool is_covered = false;  // a request was answered
  if (own == nullptr || claimers.has_asked(*own)) [[unlikely]] {
    is_covered = own != nullptr && own->is_uncovered_;
    sizes.for_each([&](size_class& each) { is_covered |= cover_all(each, on) && &each == &of; });
  }
  claimed_slot claimed =
      own != nullptr ? leased_in_order(*own, asked, on) : claim_search(*this, asked, of, on).run();
  if (claimed.what == nullptr) return claimed;
  claimers.note_claim(*claimed.what);
  if (!is_covered) claimed.uncovered_by = &by;  // else its release covers this one, too
  return claimed;
}

bool slot_pool::state::release_uncovered(claimed_slot& lease) {
  slot& used = *lease.what;
  size_class& of = used.of_;
  // Work on other streams, or a graph, needs an event or the graph's release.
  if (!used.unrecorded_.empty() || used.may_be_in_graphs_) return false;
  // Cheaper than query_capture(), which the other way of the release asks.
  auto capture = cudaStreamCaptureStatusNone;
  cudaError_t const status = query_is_capturing(lease.on.handle, capture);
  if (status == cudaErrorStreamCaptureImplicit && lease.on.handle == cudaStreamLegacy)
      [[unlikely]] {
    detail::clear_last_error(status);
    return false;
  }
  check(status, "cudaStreamIsCapturing");
  if (capture != cudaStreamCaptureStatusNone) return false;
  record_deferred(lease.on);
  if (!of.uncover(used, uncovered_max())) return false;
  untrack(used);  // before the slot may have a new lease
  used.is_done_ = false;
  used.was_used_ = true;
  used.key_ = lease.on.id;
  used.released_on_ = lease.on.handle;
  if (!used.also_ready_.empty()) [[unlikely]]
    used.also_ready_.clear();  // the stream waited for them
  // A stream keeps no more than it leaves to others.
  std::size_t const left = uncovered_max() - of.uncovered.load(std::memory_order_relaxed);
  auto const may_put = [&] { return claimers.may_keep(*lease.uncovered_by, lease.on.id); };
  if (!claimers.has_asked(used) &&
      of.free.put_uncovered(used, std::min(options.unrecorded_max, left + 1), may_put)) [[likely]] {
    lease.what = nullptr;  // it may have a new lease, or have ended the pool
    return true;
  }
  slot* const oldest = of.free.take_uncovered(lease.on.id, &used);
  if (oldest == &used) {
    track(used);
    note_use(used, environment::lease_event::told);  // it has not ended
    return false;
  }
  lease.what = nullptr;
  cover(oldest, lease.on, true);
  return true;
}

void slot_pool::state::refuse_destroyed(char const* call, stream_use const& on,
                                        slot const* of) const {
  // A null stream or that of a thread never is.
  if (on.id == 0 || is_ambiguous(on.handle) || is_reclaiming()) return;
  capture_info capture;  // which the query for the id would invalidate
  cudaError_t const status = detail::query_capture(on.handle, capture);
  if (succeeded(status) ? !capture.is_none() || !is_destroyed(on)
                        : status != cudaErrorInvalidResourceHandle) {
    return;
  }
  throw usage_error(
      call,
      (of == nullptr ? "the stream of a claimer of \"" : "the stream of a lease of \"") +
          options.label + "\"" + (of == nullptr ? "" : of->claim_text()) + " was destroyed",
      "release the leases, and destroy the claimers, before their stream");
}

void slot_pool::state::cover_lasting(size_class& of) noexcept {
  while (slot* const found = of.free.take_uncovered_of_any()) {
    cover(found, use_of(found->released_on_, found->key_, options.device), false);
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
    // A stream that outlives the pool keeps slots without it.
    if (!in.options.streams_outlive_pool || on_.thread != 0) its_ = &in.claimers.add(of);
    // Relaxed: the owner has one.
    in.references.fetch_add(1, std::memory_order_relaxed);
    pool_ = &pool;
    of_ = &of;
  });
}

claimer_slots::claimer_slots(claimer_slots&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)),
      of_(other.of_),
      its_(other.its_),
      on_(other.on_) {}

claimer_slots& claimer_slots::operator=(claimer_slots&& other) noexcept {
  claimer_slots taken(std::move(other));
  std::swap(pool_, taken.pool_);
  std::swap(of_, taken.of_);
  std::swap(its_, taken.its_);
  std::swap(on_, taken.on_);
  return *this;
}

claimer_slots::~claimer_slots() {
  if (pool_ == nullptr) return;
  slot_pool::state& in = *pool_->state_;
  if (its_ != nullptr) {
    claimer_streams::end(*its_);
    in.cover(of_->free.take_uncovered(on_.id), on_, false);
    in.claimers.remove(*its_);
  }
  in.drop_reference();
}

void claimer_slots::refuse_moved_from(char const* call) {
  throw usage_error(call, "the claimer was moved from", "use the one that it was moved to");
}

slot_pool& claimer_slots::require_pool(char const* call) const {
  tell_used_alone(this, call);
  if (pool_ == nullptr) refuse_moved_from(call);
  if (is_other_thread(on_)) {
    throw usage_error(call, "cudaStreamPerThread names another stream on this thread",
                      "make a claimer on each thread");
  }
  return *pool_;
}

claimed_slot claimer_slots::claim(char const* call, source_location where,
                                  std::optional<std::chrono::nanoseconds> host_wait_max,
                                  std::size_t bytes, claim_kind kind, std::size_t used) {
  return detail::called_at(call, where, [&] {
    slot_pool::state& in = *require_pool(call).state_;
    std::optional<device_scope> device;
    if (is_ambiguous(on_.handle)) device.emplace(on_.device);
    in.require_stream(call, on_);
    in.require_open(call, *of_, on_.handle);
    in.retire_unused();
    claim_request const asked{call, on_.handle, where, host_wait_max, bytes, kind, used};
    if (!captures_nothing(on_.handle)) [[unlikely]] {
      detail::capture_dependencies after;
      capture_info const capture = usable_capture_of(call, on_.handle, &after);
      if (capture.is_active())
        return slot_pool::claim_search(in, asked, *of_, on_, capture, capture_frontier(after))
            .run();
    }
    if (in.in_arena.may_be) [[unlikely]]
      in.refuse_beside_arena(asked);
    learn_id();
    in.record_deferred(on_);
    if (in.kind_of(asked) == claim_kind::for_host) {
      return slot_pool::claim_search(in, asked, *of_, on_).run();
    }
    return in.claim_uncovered(its_ != nullptr ? *its_ : in.claimers.lasting, on_, asked, *of_);
  });
}

void claimer_slots::learn_id() {
  if (on_.id != 0) [[likely]]
    return;
  std::uint64_t const id = stream_id(on_.handle);
  if (its_ != nullptr) its_->id.store(id, std::memory_order_relaxed);
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
    in.record_deferred(on_);
    in.sizes.for_each([&](size_class& each) { in.cover_all(each, on_); });
  });
}

}  // namespace escrow::inline v0_2
