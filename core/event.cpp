// Checked calls on events; shared events are found by their handles as long as there is a share.
#include "escrow/core/event.hpp"

#include <mutex>
#include <unordered_map>
#include <utility>

#include "escrow/detail/device.hpp"
#include "escrow/detail/never_destroyed.hpp"
#include "escrow/detail/retry_cleanup.hpp"

namespace escrow {

void event_ref::record(stream_ref stream) const {
  check(cudaEventRecord(event_, stream.get()), "cudaEventRecord");
}

void event_ref::wait(stream_ref stream) const {
  check(cudaStreamWaitEvent(stream.get(), event_, 0), "cudaStreamWaitEvent");
}

bool event_ref::is_done() const {
  cudaError_t const status = cudaEventQuery(event_);
  if (status == cudaErrorNotReady) return false;  // not an error: see succeeded()
  check(status, "cudaEventQuery");
  return true;
}

void event_ref::sync() const {
  check(cudaEventSynchronize(event_), "cudaEventSynchronize");
}

event::event(source_location where) : event_(nullptr) {
  check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreateWithFlags",
        where);
}

event::~event() {
  if (event_ != nullptr) retry_cleanup([this] { return cudaEventDestroy(event_); });
}

struct shared_event::state {
  state(event given, unsigned its_flags, int its_device) noexcept
      : owned(std::move(given)), flags(its_flags), device(its_device) {}
  state(state&&) = delete;
  ~state() {
    // Before the event goes: its handle may then be another's.
    std::lock_guard const lock(all().mutex);
    all().events.erase(owned.get());
  }

  // The events that have a share, by their handles.
  struct all_shared {
    std::mutex mutex;  // guards `events`; held across no call of CUDA
    std::unordered_map<cudaEvent_t, std::weak_ptr<state const>> events;
  };
  static all_shared& all() noexcept {
    // Not destroyed: an event may be destroyed while the process exits.
    static never_destroyed<all_shared> kept;
    return *kept;
  }

  event owned;
  unsigned flags;
  int device;
};

shared_event shared_event::make(unsigned flags, source_location where) {
  int const device = current_device();
  cudaEvent_t made = nullptr;
  check(cudaEventCreateWithFlags(&made, flags), "cudaEventCreateWithFlags", where);
  event owned(made);
  auto const shared = std::make_shared<state const>(std::move(owned), flags, device);
  std::lock_guard const lock(state::all().mutex);
  state::all().events.emplace(made, shared);
  return shared_event(shared);
}

std::optional<shared_event> shared_event::find(cudaEvent_t handle) {
  std::lock_guard const lock(state::all().mutex);
  auto const found = state::all().events.find(handle);
  auto shared = found == state::all().events.end() ? nullptr : found->second.lock();
  if (shared == nullptr) return std::nullopt;
  return shared_event(std::move(shared));
}

cudaEvent_t shared_event::get() const noexcept {
  return shared_ == nullptr ? nullptr : shared_->owned.get();
}

unsigned shared_event::flags() const noexcept {
  return shared_ == nullptr ? 0 : shared_->flags;
}

int shared_event::device() const noexcept {
  return shared_ == nullptr ? -1 : shared_->device;
}

}  // namespace escrow
