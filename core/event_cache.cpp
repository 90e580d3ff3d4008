// The process-wide event cache: one list a device, never destroyed.
#include "escrow/core/event_cache.hpp"

#include <array>
#include <mutex>
#include <utility>
#include <vector>

#include "escrow/core/device_scope.hpp"
#include "escrow/detail/never_destroyed.hpp"

namespace escrow {

namespace {

struct idle_events {
  std::mutex mutex;           // guards `events`; never held across a CUDA call
  std::vector<event> events;  // room for idle_max is made by take(), so that put() never allocates
};

constexpr int devices_max = 64;  // more devices than one process sees; beyond, events are not kept

idle_events* idle_events_of(int device, event_use use) noexcept {
  // Not destroyed: an event may be put back while the process exits.
  static never_destroyed<std::array<std::array<idle_events, devices_max>, 2>> lists;
  if (device < 0 || device >= devices_max) return nullptr;
  return &(*lists)[static_cast<std::size_t>(use)][static_cast<std::size_t>(device)];
}

}  // namespace

event event_cache::take(int device, event_use use) {
  if (idle_events* const idle = idle_events_of(device, use)) {
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

void event_cache::put(int device, event&& idle_event, event_use use) noexcept {
  event to_destroy = std::move(idle_event);  // destroyed after the lock, unless it is stored
  idle_events* const idle = idle_events_of(device, use);
  if (idle == nullptr) return;
  std::lock_guard const lock(idle->mutex);
  if (idle->events.size() < idle->events.capacity()) {
    idle->events.push_back(std::move(to_destroy));
  }
}

}  // namespace escrow
