// SPDX-License-Identifier: Apache-2.0
// Checked event calls, the cache of idle events, the retry of a record, and the meaning of query
// results.
#include "escrow/internal/ready_event.hpp"

#include <array>
#include <mutex>
#include <new>
#include <string_view>
#include <utility>
#include <vector>

#include "escrow/core/error.hpp"
#include "escrow/core/stream.hpp"
#include "escrow/internal/device.hpp"
#include "escrow/internal/driver.hpp"
#include "escrow/internal/last_error.hpp"
#include "escrow/internal/never_destroyed.hpp"
#include "escrow/internal/retry_cleanup.hpp"

namespace escrow::inline v0_2 {

namespace {

void require_event(cudaEvent_t event, char const* call, source_location where) {
  if (event != nullptr) return;
  detail::refuse_at(where, call, "the event is null",
                    "use one that was made: escrow::event, or cudaEventCreate");
}

}  // namespace

void event_ref::record(stream_ref stream, source_location where) const {
  require_event(event_, "event_ref::record", where);
  cudaError_t const status = cudaEventRecord(event_, stream.get());
  bool const is_unknown = status == cudaErrorInvalidResourceHandle;
  check(status, "cudaEventRecord", where,
        is_unknown ? "the event is of another device than the stream, or one of them was destroyed"
                   : std::string_view());
}

void event_ref::wait(stream_ref stream, source_location where) const {
  require_event(event_, "event_ref::wait", where);
  check(cudaStreamWaitEvent(stream.get(), event_, 0), "cudaStreamWaitEvent", where);
}

bool event_ref::is_done(source_location where) const {
  require_event(event_, "event_ref::is_done", where);
  cudaError_t const status = cudaEventQuery(event_);
  if (status == cudaErrorNotReady) return false;  // not an error: see succeeded()
  check(status, "cudaEventQuery", where);
  return true;
}

void event_ref::sync(source_location where) const {
  require_event(event_, "event_ref::sync", where);
  check(cudaEventSynchronize(event_), "cudaEventSynchronize", where);
}

event::event(source_location where) : event(cudaEventDisableTiming, where) {}

event::event(unsigned flags, source_location where) {
  cudaEvent_t made = nullptr;
  check(cudaEventCreateWithFlags(&made, flags), "cudaEventCreateWithFlags", where);
  event_.reset(made);
}

void event::destroy::operator()(cudaEvent_t unused) const noexcept {
  retry_cleanup([unused] { return cudaEventDestroy(unused); });
}

namespace {

struct idle_events {
  std::mutex mutex;           // guards `events`; never held across a CUDA call
  std::vector<event> events;  // take() reserves idle_max, so that put() never allocates
};

constexpr int devices_max = 64;  // above any real count; events of further devices are not cached

idle_events* idle_events_of(int device) noexcept {
  // Not destroyed: an event may be put back during process exit.
  static never_destroyed<std::array<idle_events, devices_max>> lists;
  if (device < 0 || device >= devices_max) return nullptr;
  return &(*lists)[static_cast<std::size_t>(device)];
}

}  // namespace

event event_cache::take(int device) {
  if (idle_events* const idle = idle_events_of(device)) {
    std::lock_guard const lock(idle->mutex);
    if (!idle->events.empty()) {
      event found = std::move(idle->events.back());
      idle->events.pop_back();
      return found;
    }
    idle->events.reserve(idle_max);
  }
  device_scope const current(device);
  return event();
}

void event_cache::put(int device, event&& idle_event) noexcept {
  event to_destroy = std::move(idle_event);  // if not stored, destroyed after unlocking
  idle_events* const idle = idle_events_of(device);
  if (idle == nullptr) return;
  std::lock_guard const lock(idle->mutex);
  if (idle->events.size() < idle->events.capacity()) {
    idle->events.push_back(std::move(to_destroy));
  }
}

namespace {

// An event of another device than the stream's cannot be recorded, which is found out by trying,
// unless that would replace an error of the caller's.
bool is_known_to_fail(int device, cudaStream_t stream) noexcept {
  static bool const are_several = [] {
    int count = 0;
    return !succeeded(cudaGetDeviceCount(&count)) || count > 1;
  }();
  if (!are_several || !is_error_pending()) [[likely]]
    return false;
  int found = 0;
  return cudaStreamGetDevice(stream, &found) == cudaSuccess && found != device;
}

}  // namespace

record_result record_ready(event& ready, int& device, cudaStream_t stream,
                           recorded_by whom) noexcept {
  cudaError_t first = cudaSuccess;
  if (!is_known_to_fail(device, stream)) {
    first = whom == recorded_by::launcher ? record_behind(stream, ready.get())
                                          : cudaEventRecord(ready.get(), stream);
    if (succeeded(first)) return {record_outcome::recorded, first};
  }
  cudaError_t second = first;
  try {
    if (!is_sticky(first)) {
      int const own_device = device_of(stream);
      event fresh = event_cache::take(own_device);
      check(cudaEventRecord(fresh.get(), stream), "cudaEventRecord");
      // On its own device it is still usable.
      if (ready && device != own_device) event_cache::put(device, std::move(ready));
      ready = std::move(fresh);
      device = own_device;
      return {record_outcome::recorded, first};
    }
  } catch (cuda_error const& error) {
    second = error.status();
  } catch (std::bad_alloc const&) {
    second = cudaErrorMemoryAllocation;
  }
  return {runs_nothing_after(second) ? record_outcome::device_lost : record_outcome::failed, first};
}

ready_answer answer_of(cudaError_t query_status) noexcept {
  if (query_status == cudaSuccess) return ready_answer::done;
  if (is_sticky(query_status)) {
    return runs_nothing_after(query_status) ? ready_answer::done : ready_answer::gone;
  }
  return query_status == cudaErrorInvalidResourceHandle ? ready_answer::gone
                                                        : ready_answer::not_yet;
}

}  // namespace escrow::inline v0_2
