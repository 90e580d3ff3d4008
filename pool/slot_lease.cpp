// A lease's end, on the right stream, whatever fails.
#include "escrow/pool/slot_lease.hpp"

#include <atomic>
#include <exception>
#include <optional>
#include <string>

#include "escrow/core/error.hpp"
#include "escrow/detail/deleter_core.hpp"
#include "escrow/detail/device.hpp"
#include "escrow/pool/slot_pool.hpp"

namespace escrow {

namespace {

// Handles that name another stream on another device (the first two) or thread (the last two).
bool is_ambiguous(cudaStream_t stream) noexcept {
  return stream == nullptr || stream == cudaStreamLegacy || stream == cudaStreamPerThread;
}

}  // namespace

std::uint64_t slot_lease::number_of_this_thread() noexcept {
  // Relaxed: only that each thread gets another number counts.
  static std::atomic<std::uint64_t> last{0};
  thread_local std::uint64_t const number = last.fetch_add(1, std::memory_order_relaxed) + 1;
  return number;
}

void slot_pool::require_same_thread(char const* call, std::uint64_t thread,
                                    std::string_view what_it_did) {
  if (thread == 0 || thread == slot_lease::number_of_this_thread()) return;
  throw usage_error(
      call,
      "cudaStreamPerThread names another stream on this thread than on the one that " +
          std::string(what_it_did),
      "release on that thread; after a claim on cudaStreamPerThread, "
      "release(stream) with another stream will do, too");
}

slot& slot_lease::held(char const* call) const {
  if (slot_ == nullptr) {
    throw usage_error(call, "the lease is empty: it was released or moved from", "claim again");
  }
  return *slot_;
}

bool slot_lease::may_have_been_used() const noexcept {
  return slot_ != nullptr && slot_->was_used_;
}

void slot_lease::release() {
  slot_pool& pool = held("lease::release").pool();
  slot_pool::require_same_thread("lease::release", thread_, "claimed");
  std::optional<device_scope> device;
  if (is_ambiguous(stream_)) device.emplace(pool.device());  // where the claim was made
  pool.release(*this, stream_, capture_at_release(stream_), stream_id_);
}

void slot_lease::release(stream_ref stream) {
  slot_pool& pool = held("lease::release").pool();
  capture_info const capture = capture_at_release(stream);
  if (capture.status != capture_status::invalidated) {
    pool.require_device("lease::release", stream, capture,
                        "release on a stream of the pool's device, and tell record_stream() of "
                        "the other");
  }
  pool.release(*this, stream, capture, 0);
}

capture_info slot_lease::capture_at_release(stream_ref stream) const {
  // What was claimed in a capture is released in it also once it has been invalidated.
  return capture_id_ == 0 ? usable_capture_of("lease::release", stream) : capture_of(stream);
}

void slot_lease::record_stream(stream_ref stream) {
  slot& used = held("lease::record_stream");
  capture_info const capture = usable_capture_of("lease::record_stream", stream);
  if (capture.id != capture_id_) refuse_capture("lease::record_stream");
  // Asking a capturing stream for its device would kill the capture.
  int const device = capture.is_none()            ? device_of(stream)
                     : is_ambiguous(stream.get()) ? current_device()
                                                  : used.pool().device();
  used.also_streams_.push_back({stream.get(), thread_of(stream), device});
}

void slot_lease::refuse_capture(char const* call) const {
  throw usage_error(call,
                    capture_id_ == 0
                        ? "`stream` is being captured, the lease was claimed outside"
                        : "`stream` is not part of the capture that the lease was claimed in",
                    "claim in the same capture as the work");
}

void slot_lease::before_launch(stream_ref stream) {
  slot& used = held("launch");
  // Also where the stream is known: it may have begun to capture since, and its graph does not hold
  // the slot.
  capture_info const capture = usable_capture_of("launch", stream);
  if (capture.is_active() && capture.id != capture_id_) refuse_capture("launch");
  auto const is_same = [stream](cudaStream_t handle, std::uint64_t thread, int device) {
    return handle == stream.get() && thread == thread_of(stream) &&
           (!is_ambiguous(handle) || device == current_device());
  };
  if (is_same(stream_, thread_, used.pool().device())) return;
  for (slot::used_stream const& also : used.also_streams_) {
    if (is_same(also.handle, also.thread, also.device)) return;
  }
  record_stream(stream);
}

slot_share slot_lease::share_with_node() {
  slot& used = held("node::launch");
  return used.pool().share(used);
}

void slot_lease::release_at_end() noexcept {
  slot_pool& pool = slot_->pool();
  try {
    return release();
  } catch (std::exception const&) {
    if (slot_ == nullptr) return;  // released and reported
  }
  // Nobody is there to try again: what cannot be recorded on the legacy stream can be elsewhere.
  try {
    device_scope const device(pool.device());
    pool.avoid_legacy(*this);
    release();
  } catch (std::exception const& error) {
    if (slot_ == nullptr) return;
    auto const* const from_cuda = dynamic_cast<cuda_error const*>(&error);
    pool.core().report(error);
    pool.abandon(*this, from_cuda != nullptr && runs_nothing_after(from_cuda->status()));
  }
}

}  // namespace escrow
