// What happens to a slot when its lease ends, on the right streams, whatever fails.
#include <algorithm>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "escrow/core/error.hpp"
#include "escrow/detail/deleter_core.hpp"
#include "escrow/detail/device.hpp"
#include "slot_pool_state.hpp"

namespace escrow {

namespace {

void require_same_thread(stream_use const& use, std::string_view what_it_did) {
  if (!is_other_thread(use)) return;
  throw usage_error(
      "lease::release",
      "cudaStreamPerThread names another stream on this thread than on the one that " +
          std::string(what_it_did),
      "release on that thread; after a claim on cudaStreamPerThread, "
      "release(stream) with another stream will do, too");
}

[[noreturn]] void refuse_capture(char const* call, claimed_slot const& lease) {
  throw usage_error(call,
                    lease.capture_id == 0
                        ? "`stream` is being captured, the lease was claimed outside"
                        : "`stream` is not part of the capture that the lease was claimed in",
                    "claim in the same capture as the work");
}

}  // namespace

slot& slot_pool::require_slot(char const* call, claimed_slot const& lease) {
  if (lease.what == nullptr) {
    throw usage_error(call, "the lease is empty: it was released or moved from", "claim again");
  }
  return *lease.what;
}

void slot_pool::release(claimed_slot& lease) {
  state& in = *require_slot("lease::release", lease).pool_.state_;
  require_same_thread({lease.stream, 0, lease.thread, 0}, "claimed");
  std::optional<device_scope> device;
  if (is_ambiguous(lease.stream)) device.emplace(in.options.device);  // where the claim was made
  in.release_on(lease, lease.stream, lease.stream_id);
}

void slot_pool::release(claimed_slot& lease, stream_ref stream) {
  state& in = *require_slot("lease::release", lease).pool_.state_;
  capture_info capture;
  cudaError_t const status = detail::query_capture(stream.get(), capture);
  if (succeeded(status) && capture.status != capture_status::invalidated) {
    in.require_device("lease::release", stream, capture,
                      "release on a stream of the pool's device, and tell record_stream() of the "
                      "other");
  }
  in.release_on(lease, stream, 0);
}

void slot_pool::release_at_end(claimed_slot& lease) noexcept {
  state& in = *lease.what->pool_.state_;
  constexpr int attempts_max = 2;  // a failed call may be the only one
  for (int attempt = 1; lease.what != nullptr; ++attempt) {
    try {
      return release(lease);
    } catch (std::exception const& error) {
      if (lease.what == nullptr) return;  // released and reported
      if (attempt < attempts_max) continue;
      in.core.report(error);
      return in.abandon(lease);
    }
  }
}

void slot_pool::state::abandon(claimed_slot& lease) noexcept {
  stream_use const own{lease.stream, lease.stream_id, lease.thread, options.device};
  if (is_other_thread(own)) return defer(lease, own);
  capture_info capture;
  try {
    device_scope const device(options.device);
    capture = capture_of(lease.stream);
  } catch (cuda_error const& error) {
    if (!runs_nothing_after(error.status())) return defer(lease, own);
    lease.what->unrecorded_.clear();
    return end_lease(*std::exchange(lease.what, nullptr));
  } catch (std::exception const&) {
    return defer(lease, own);
  }
  if (!capture.is_active()) return defer(lease, own);
  slot& used = *std::exchange(lease.what, nullptr);
  used.unrecorded_.clear();
  // Its graph keeps it, and no claim of the capture gets it. Another graph could not be made to.
  capture.id == lease.capture_id ? end_lease(used) : leak(used);
}

void slot_pool::state::release_on(claimed_slot& lease, stream_ref stream, std::uint64_t id) {
  capture_info capture;
  detail::capture_dependencies after;
  cudaError_t const status = detail::query_capture(stream.get(), capture, after);
  bool const is_blocked = is_blocked_legacy(stream.get(), status);
  if (is_blocked) {
    static_cast<void>(cudaGetLastError());
  } else {
    check(status, "cudaStreamGetCaptureInfo");
  }
  if (capture.is_none() && !is_blocked) {
    return release_eager(lease, stream, id != 0 ? id : stream_id(stream));
  }
  if (capture.is_active()) {
    if (capture.id == lease.capture_id) return release_captured(lease, after);
    // Work on the slot may have been captured: this graph has to hold it, too.
    hold_in_graph(*lease.what, capture, {});
  }
  // Work from before this capture may still run, and nothing can be recorded now.
  int const device = is_ambiguous(stream.get()) ? current_device() : options.device;
  defer(lease, {stream.get(), id, thread_of(stream), device});
}

void slot_pool::state::release_eager(claimed_slot& lease, stream_ref stream, std::uint64_t id) {
  for (stream_use const& also : lease.what->unrecorded_) {
    require_same_thread(also, "gave it to record_stream()");
  }
  slot& used = *std::exchange(lease.what, nullptr);
  used.is_done_ = false;
  used.was_used_ = true;
  used.key_ = id;
  used.released_at_ = stamp();
  cudaError_t status = cudaEventRecord(used.ready_.get(), stream.get());
  if (status == cudaSuccess && used.unrecorded_.empty()) [[likely]] {
    // Before the slot is back, with which the pool may go.
    record_deferred(stream, id);
    return end_lease(used);
  }
  if (status != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    used.unrecorded_.push_back({stream.get(), id, thread_of(stream), options.device});
  }
  status = record_all(used);
  record_deferred(stream, id);
  if (status != cudaSuccess) core.report(status, "cudaEventRecord");  // now: see above
  finish_release(used);
  check(status, "cudaEventRecord");
}

void slot_pool::state::release_captured(claimed_slot& lease,
                                        detail::capture_dependencies const& after) {
  slot& used = *lease.what;
  capture_frontier end(after);
  for (stream_use const& also : used.unrecorded_) {
    require_same_thread(also, "gave it to record_stream()");
    device_scope const current(also.device);
    capture_info capture;
    detail::capture_dependencies also_after;
    check(detail::query_capture(also.handle, capture, also_after), "cudaStreamGetCaptureInfo");
    if (capture.id != lease.capture_id) {
      throw usage_error("lease::release",
                        "a stream given to record_stream() is not part of the capture any more",
                        "release before the stream leaves the capture");
    }
    end.merge(capture_frontier(also_after));
  }
  dependency_list edges = dependencies_of(end.nodes);
  used.released_at_ = stamp();
  // Nothing may fail any more, and the slot may be another lease's.
  bool const is_free =
      reuse.end_lease_in(used, lease.capture_id, std::move(end.nodes), std::move(edges));
  lease.what = nullptr;
  if (!is_free) return;
  used.may_be_in_graphs_ = false;
  go_home(used);
}

void slot_pool::state::end_lease(slot& used) noexcept {
  // Only what graphs may hold is known there.
  if (used.may_be_in_graphs_) {
    if (!reuse.end_lease(used)) return;
    used.may_be_in_graphs_ = false;
  }
  go_home(used);
}

void slot_pool::state::go_home(slot& idle) noexcept {
  // Once the slot is put back, the pool may end with it: what is announced then needs a reference.
  // A thread that begins to wait just now may be missed, and looks again after a moment.
  bool const is_awaited = waiters.load(std::memory_order_relaxed) != 0;
  if (is_awaited) references.fetch_add(1, std::memory_order_relaxed);
  if (!free.put(idle)) destroy(idle);
  if (!is_awaited) return;
  announce_return();
  drop_reference();
}

void slot_pool::state::put_back(slot& unused) noexcept {
  // It is out of its stream's order.
  unused.key_ = unused.is_done_ ? free_lists::idle : free_lists::own_list_of(unused);
  if (!free.put(unused)) destroy(unused);
}

void slot_pool::record_stream(claimed_slot const& lease, stream_ref stream) {
  slot& used = require_slot("lease::record_stream", lease);
  capture_info const capture = usable_capture_of("lease::record_stream", stream);
  if (capture.id != lease.capture_id) refuse_capture("lease::record_stream", lease);
  // Asking a capturing stream for its device or id would invalidate the capture.
  bool const is_eager = capture.is_none();
  int const device = is_eager                     ? device_of(stream)
                     : is_ambiguous(stream.get()) ? current_device()
                                                  : used.pool_.device();
  stream_use const use{stream.get(), is_eager ? stream_id(stream) : 0, thread_of(stream), device};
  if (is_eager) used.pool_.state_->record_deferred(stream, use.id);
  auto const is_same = [&use](stream_use const& known) {
    if (use.id != 0 || known.id != 0) return use.id == known.id;
    return use.handle == known.handle && use.thread == known.thread && use.device == known.device;
  };
  if (std::ranges::any_of(used.unrecorded_, is_same)) return;
  // And room for the lease's own stream, so that its end never allocates.
  if (used.unrecorded_.size() + 2 > used.unrecorded_.capacity()) {
    used.unrecorded_.reserve(2 * used.unrecorded_.size() + 2);
  }
  used.unrecorded_.push_back(use);
}

void slot_pool::before_launch(claimed_slot const& lease, stream_ref stream) {
  slot const& used = require_slot("launch", lease);
  // Also where the stream is known: it may have begun to capture since, and its graph does not hold
  // the slot.
  capture_info const capture = usable_capture_of("launch", stream);
  if (capture.is_active() && capture.id != lease.capture_id) refuse_capture("launch", lease);
  auto const is_same = [stream](cudaStream_t handle, std::uint64_t thread, int device) {
    return handle == stream.get() && thread == thread_of(stream) &&
           (!is_ambiguous(handle) || device == current_device());
  };
  if (is_same(lease.stream, lease.thread, used.pool_.device())) return;
  for (stream_use const& also : used.unrecorded_) {
    if (is_same(also.handle, also.thread, also.device)) return;
  }
  record_stream(lease, stream);
}

slot_share slot_pool::share_with_node(claimed_slot const& lease) {
  slot& used = require_slot("node::launch", lease);
  return used.pool_.state_->share(used);
}

}  // namespace escrow
