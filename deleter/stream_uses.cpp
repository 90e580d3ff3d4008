// Noting uses of a shared object, and waiting for them.
#include "escrow/deleter/stream_uses.hpp"

#include <algorithm>
#include <exception>
#include <mutex>
#include <utility>

#include "escrow/core/capture.hpp"
#include "escrow/core/error.hpp"
#include "escrow/deleter/deleter.hpp"
#include "escrow/deleter/stream_shared.hpp"
#include "escrow/detail/device.hpp"
#include "escrow/detail/ready_event.hpp"
#include "escrow/detail/retry_cleanup.hpp"

namespace escrow {

namespace {

// A graph's hold on a shared object.
class graph_share {
 public:
  explicit graph_share(stream_uses& shared) noexcept : shared_(&shared) { shared.hold(); }
  graph_share(graph_share&& other) noexcept : shared_(std::exchange(other.shared_, nullptr)) {}
  graph_share& operator=(graph_share&& other) = delete;
  ~graph_share() {
    if (shared_ != nullptr) shared_->let_go();
  }

 private:
  stream_uses* shared_;
};

bool is_legacy(stream_ref stream) noexcept {
  return stream.get() == nullptr || stream.get() == cudaStreamLegacy;
}

}  // namespace

stream_uses& detail::require_stream_shared(stream_shared_deleter const* deleter) {
  if (deleter != nullptr) return *deleter->uses;
  throw usage_error("record_stream", "`shared` is empty or was not made by make_stream_shared()",
                    "make it so, or keep a share with retain()");
}

stream_uses::stream_uses(deleter& its, destroy_function destroy)
    : graph_reference(its.hub(), release_lane::destroy, current_device(), &reclaim_uses),
      deleter_(its),
      destroy_(destroy),
      home_(device()) {
  hold();
}

stream_uses::~stream_uses() {
  for (use& each : uses_) {
    if (each.ready) event_cache::put(each.device, std::move(each.ready));
  }
}

void stream_uses::note(stream_ref stream) {
  // The work has been enqueued: what fails now must not let the object go before it is done.
  bool is_named = false;
  try {
    if (usable_capture_of("record_stream", stream).is_active()) {
      is_named = true;  // by the capture, which is not to be launched if this fails
      return deleter_.retire_around(
          "record_stream", stream, graph_share(*this), [](graph_share&) noexcept {}, [] {});
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
    hub().report(error);
    throw;
  }
}

void stream_uses::use_for_ever() {
  std::lock_guard const lock(mutex_);
  is_in_use_for_ever_ = true;
}

void stream_uses::record(use& noted, stream_ref stream) {
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

stream_uses::use& stream_uses::use_on(std::uint64_t stream) {
  auto const found = std::find_if(uses_.begin(), uses_.end(),
                                  [stream](use const& each) { return each.stream == stream; });
  if (found != uses_.end()) return *found;
  if (uses_.size() == uses_.capacity()) make_room();
  return uses_.emplace_back(use{.stream = stream});
}

void stream_uses::make_room() {
  try {
    forget_uses_that_are_over();
  } catch (cuda_error const&) {
    // They are forgotten another time.
  }
  uses_.reserve(std::max<std::size_t>(2 * uses_.size(), 4));
}

void stream_uses::forget_uses_that_are_over() {
  // They need no place, so that streams may come and go for ever.
  relaxed_capture_scope const relaxed;
  std::erase_if(uses_, [](use& each) {
    if (!each.is_recorded || !succeeded(cudaEventQuery(each.ready.get()))) return false;
    event_cache::put(each.device, std::move(each.ready));
    return true;
  });
}

void stream_uses::reclaim_uses(release_node& node) noexcept {
  // No holder is left: nobody else comes here, and the last let_go() comes before this.
  auto& shared = static_cast<stream_uses&>(node);
  bool const is_known = std::ranges::all_of(shared.uses_, &use::is_recorded);
  if (shared.is_in_use_for_ever_ || !is_known) return release_hub::keep_for_ever(shared);
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

void stream_uses::await(use const& last) noexcept {
  awaits_last_ = true;
  set_device(last.device);
  reclaim_again_after(last.ready.get());
}

void stream_uses::drop_last() noexcept {
  awaits_last_ = false;
  event_cache::put(uses_.back().device, std::move(uses_.back().ready));
  uses_.pop_back();
}

}  // namespace escrow
