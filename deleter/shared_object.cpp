// Noting uses of a shared object, and waiting for them.
#include "escrow/deleter/shared_object.hpp"

#include <algorithm>
#include <exception>
#include <mutex>
#include <utility>

#include "escrow/core/capture.hpp"
#include "escrow/core/error.hpp"
#include "escrow/deleter/deleter.hpp"
#include "escrow/detail/device.hpp"
#include "escrow/detail/ready_event.hpp"
#include "escrow/detail/retry_cleanup.hpp"

namespace escrow {

namespace {

bool is_legacy(stream_ref stream) noexcept {
  return stream.get() == nullptr || stream.get() == cudaStreamLegacy;
}

}  // namespace

shared_object_base& detail::require_stream_shared(stream_shared_deleter const* deleter) {
  if (deleter != nullptr) return *deleter->uses;
  throw usage_error("record_stream", "`shared` is empty or was not made by make_stream_shared()",
                    "make it so, or keep a share with retain()");
}

shared_object_base::shared_object_base(deleter& its, destroy_function destroy)
    : reclaimable(its.core(), release_lane::destroy, current_device(), &reclaim_uses),
      deleter_(its),
      destroy_(destroy),
      home_(device()) {
  add_ref();
}

shared_object_base::~shared_object_base() {
  for (use& each : uses_) {
    if (each.ready) event_cache::put(each.device, std::move(each.ready));
  }
}

void shared_object_base::note(stream_ref stream) {
  // The work has been enqueued: what fails now must not let the object go before it is done.
  bool is_named = false;
  try {
    if (usable_capture_of("record_stream", stream).is_active()) {
      is_named = true;  // by the capture, which is not to be launched if this fails
      return deleter_.retire_around(
          "record_stream", stream, ref<shared_object_base>(*this),
          [](ref<shared_object_base>&) noexcept {}, [] {});
    }
    std::uint64_t const id = stream_id(stream);
    std::lock_guard const lock(mutex_);
    use& noted = use_on(id);
    is_named = true;
    record(noted, stream);
  } catch (usage_error const&) {
    // None of that work will run; but what the legacy stream was given before a blocking stream
    // began to capture does.
    if (is_legacy(stream)) use_for_ever();
    throw;
  } catch (std::exception const& error) {
    if (!is_named) use_for_ever();
    core().report(error);
    throw;
  }
}

void shared_object_base::use_for_ever() {
  std::lock_guard const lock(mutex_);
  is_in_use_for_ever_ = true;
}

void shared_object_base::record(use& noted, stream_ref stream) {
  noted.is_recorded = false;
  if (!noted.ready) {
    // The current device's, though the stream may be another's: recording mends that.
    noted.device = current_device();
    noted.ready = event_cache::take(noted.device);
  }
  record_result const recorded = record_ready(noted.ready, noted.device, stream.get());
  if (recorded.outcome == record_outcome::failed) {
    throw cuda_error(recorded.status, "cudaEventRecord");
  }
  noted.is_recorded = true;
}

shared_object_base::use& shared_object_base::use_on(std::uint64_t stream) {
  auto const found = std::find_if(uses_.begin(), uses_.end(),
                                  [stream](use const& each) { return each.stream == stream; });
  if (found != uses_.end()) return *found;
  if (uses_.size() == uses_.capacity()) make_room();
  return uses_.emplace_back(use{.stream = stream});
}

void shared_object_base::make_room() {
  try {
    forget_uses_that_are_over();
  } catch (cuda_error const&) {
    // They are forgotten another time.
  }
  uses_.reserve(std::max<std::size_t>(2 * uses_.size(), 4));
}

void shared_object_base::forget_uses_that_are_over() {
  // They need no place, so that streams may come and go for ever.
  relaxed_capture_scope const relaxed;
  std::erase_if(uses_, [](use& each) {
    if (!each.is_recorded || !succeeded(cudaEventQuery(each.ready.get()))) return false;
    event_cache::put(each.device, std::move(each.ready));
    return true;
  });
}

void shared_object_base::reclaim_uses(reclaimable& thing) noexcept {
  // No holder is left: nobody else comes here, and the last drop_ref() comes before this.
  auto& shared = static_cast<shared_object_base&>(thing);
  bool const is_known = std::ranges::all_of(shared.uses_, &use::is_recorded);
  if (shared.is_in_use_for_ever_ || !is_known) return deleter_core::leak(shared);
  if (shared.awaits_last_) shared.drop_last();
  while (!shared.uses_.empty()) {
    use const& last = shared.uses_.back();
    // Whatever else the answer is, the worker knows what to make of it.
    if (!succeeded(cudaEventQuery(last.ready.get()))) return shared.await(last);
    shared.drop_last();
  }
  if (shared.device() != shared.home_) {
    // It is destroyed all the same if that fails, as the worker would.
    retry_cleanup([&shared] { return cudaSetDevice(shared.home_); });
  }
  shared.destroy_(shared);
}

void shared_object_base::await(use const& last) noexcept {
  awaits_last_ = true;
  set_device(last.device);
  reclaim_again_after(last.ready.get());
}

void shared_object_base::drop_last() noexcept {
  awaits_last_ = false;
  event_cache::put(uses_.back().device, std::move(uses_.back().ready));
  uses_.pop_back();
}

}  // namespace escrow
