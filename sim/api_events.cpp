// SPDX-License-Identifier: Apache-2.0
// Events.
#include "api.hpp"
#include "captures.hpp"
#include "ops.hpp"
#include "runner.hpp"
#include "streams.hpp"

using namespace escrow::sim::model;  // What this file gives C names to.

namespace {

cudaError_t create(char const* name, cudaEvent_t* out, unsigned int flags) {
  return call(name, ordinary, [&](api_call& c) {
    constexpr unsigned known =
        cudaEventBlockingSync | cudaEventDisableTiming | cudaEventInterprocess;
    if (out == nullptr || (flags & ~known) != 0) return cudaErrorInvalidValue;
    auto event = std::make_shared<event_state>();
    event->device = c.me.device;
    event->flags = flags;
    *out = c.s.events.add(std::move(event));
    return cudaSuccess;
  });
}

cudaError_t record_call(char const* name, cudaEvent_t event, cudaStream_t handle,
                        unsigned int flags) {
  return call(name, ordinary, [&](api_call& c) {
    if ((flags & ~unsigned{cudaEventRecordExternal}) != 0) return cudaErrorInvalidValue;
    std::shared_ptr<stream_state> stream;
    std::shared_ptr<event_state> what;
    if (auto const error = get_event(c, event, what); error != cudaSuccess) return error;
    if (auto const error = get_stream(c, handle, stream); error != cudaSuccess) return error;
    return record(c, what, stream, flags);
  });
}

// An event of a capture has no state to ask for, and asking kills the capture; asking for any other
// event is one of the calls that are unsafe during a capture.
cudaError_t may_ask(api_call& c, event_state const& event) {
  if (event.captured_in == nullptr) return forbid_unsafe(c);
  if (event.captured_in->is_over()) return cudaErrorInvalidValue;
  invalidate(c, *event.captured_in);
  return cudaErrorCapturedEvent;
}

bool is_done(event_state const& event) {
  return event.last == nullptr || event.last->done;
}

}  // namespace

extern "C" {

cudaError_t CUDARTAPI cudaEventCreate(cudaEvent_t* event) {
  return create(__func__, event, 0);
}

cudaError_t CUDARTAPI cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags) {
  return create(__func__, event, flags);
}

cudaError_t CUDARTAPI cudaEventDestroy(cudaEvent_t event) {
  return call(__func__, frees, [&](api_call& c) {
    auto const destroyed = c.s.events.find(event);
    if (destroyed == nullptr) return cudaErrorInvalidResourceHandle;
    destroyed->destroyed = true;
    c.s.events.erase(event);
    return fault();
  });
}

cudaError_t CUDARTAPI cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return record_call(__func__, event, stream, 0);
}

cudaError_t CUDARTAPI cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream,
                                               unsigned int flags) {
  return record_call(__func__, event, stream, flags);
}

cudaError_t CUDARTAPI cudaEventQuery(cudaEvent_t event) {
  return call(__func__, in_callbacks | without_context, [&](api_call& c) {
    std::shared_ptr<event_state> what;
    if (auto const error = get_event(c, event, what); error != cudaSuccess) return error;
    if (auto const error = may_ask(c, *what); error != cudaSuccess) return error;
    if (!is_done(*what)) {
      note_vain_query(c.name);
      return cudaErrorNotReady;
    }
    if (what->last != nullptr) c.s.known_done.learn(what->last->at);
    return cudaSuccess;
  });
}

cudaError_t CUDARTAPI cudaEventSynchronize(cudaEvent_t event) {
  return call(__func__, without_context, [&](api_call& c) {
    std::shared_ptr<event_state> what;
    if (auto const error = get_event(c, event, what); error != cudaSuccess) return error;
    if (auto const error = may_ask(c, *what); error != cudaSuccess) return error;
    if (what->last != nullptr) block_on(c.lock, {what->last}, c.name);
    return fault();
  });
}

cudaError_t CUDARTAPI cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end) {
  return call(__func__, in_callbacks, [&](api_call& c) {
    std::shared_ptr<event_state> from;
    std::shared_ptr<event_state> to;
    if (auto const error = get_event(c, start, from); error != cudaSuccess) return error;
    if (auto const error = get_event(c, end, to); error != cudaSuccess) return error;
    if (ms == nullptr) return cudaErrorInvalidValue;
    if (((from->flags | to->flags) & cudaEventDisableTiming) != 0)
      return cudaErrorInvalidResourceHandle;
    if (from->last == nullptr || to->last == nullptr) return cudaErrorInvalidResourceHandle;
    if (!is_done(*from) || !is_done(*to)) return cudaErrorNotReady;
    for (auto const& each : {from, to}) c.s.known_done.learn(each->last->at);
    *ms = std::chrono::duration<float, std::milli>(to->last->done_at - from->last->done_at).count();
    return cudaSuccess;
  });
}
}
