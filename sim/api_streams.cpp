// SPDX-License-Identifier: Apache-2.0
// Streams.
#include "api.hpp"
#include "captures.hpp"
#include "ops.hpp"
#include "runner.hpp"
#include "streams.hpp"

#include <algorithm>

using namespace escrow::sim::model;  // What this file gives C names to.

namespace {

cudaError_t create(char const* name, cudaStream_t* out, unsigned int flags, int priority) {
  return call(name, ordinary, [&](api_call& c) {
    if (out == nullptr || (flags & ~unsigned{cudaStreamNonBlocking}) != 0)
      return cudaErrorInvalidValue;
    auto const stream = make_stream(c.me.device, flags, priority);
    *out = c.s.streams.add(stream);
    return cudaSuccess;
  });
}

// A stream that captures answers no question, and the attempt kills its capture, in every mode.
cudaError_t may_ask(api_call& c, stream_state const& stream) {
  if (stream.capturing != nullptr) {
    invalidate(c, *stream.capturing);
    return cudaErrorStreamCaptureUnsupported;
  }
  return forbid_legacy(c, stream);
}

// Looks at one property of a stream.
template <class Look>
cudaError_t look(char const* name, cudaStream_t handle, Look how) {
  return call(name, ordinary, [&](api_call& c) {
    std::shared_ptr<stream_state> stream;
    if (auto const error = get_stream(c, handle, stream); error != cudaSuccess) return error;
    if (auto const error = may_ask(c, *stream); error != cudaSuccess) return error;
    return how(*stream);
  });
}

// Waiting for another stream is unsafe besides.
cudaError_t may_wait(api_call& c, stream_state const& stream) {
  if (auto const error = may_ask(c, stream); error != cudaSuccess) return error;
  return forbid_unsafe(c);
}

}  // namespace

extern "C" {

cudaError_t CUDARTAPI cudaStreamCreate(cudaStream_t* stream) {
  return create(__func__, stream, 0, 0);
}

cudaError_t CUDARTAPI cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int flags) {
  return create(__func__, stream, flags, 0);
}

cudaError_t CUDARTAPI cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int flags,
                                                   int priority) {
  return create(__func__, stream, flags, priority);
}

cudaError_t CUDARTAPI cudaStreamDestroy(cudaStream_t stream) {
  return call(__func__, frees, [&](api_call& c) {
    if (is_default_stream(stream)) return cudaErrorInvalidResourceHandle;
    auto const closing = find_made_stream(c.name, stream);
    if (closing == nullptr) return cudaErrorInvalidResourceHandle;
    if (closing->capturing != nullptr) abandon_capture(c, *closing);
    close_stream(*closing);
    return cudaSuccess;
  });
}

cudaError_t CUDARTAPI cudaStreamSynchronize(cudaStream_t handle) {
  return call(__func__, ordinary, [&](api_call& c) {
    std::shared_ptr<stream_state> stream;
    if (auto const error = get_stream(c, handle, stream); error != cudaSuccess) return error;
    if (auto const error = may_wait(c, *stream); error != cudaSuccess) return error;
    block_on(c.lock, work_of(*stream), c.name);
    return fault();
  });
}

cudaError_t CUDARTAPI cudaStreamQuery(cudaStream_t handle) {
  return call(__func__, ordinary, [&](api_call& c) {
    std::shared_ptr<stream_state> stream;
    if (auto const error = get_stream(c, handle, stream); error != cudaSuccess) return error;
    if (auto const error = may_wait(c, *stream); error != cudaSuccess) return error;
    auto const all = work_of(*stream);
    if (!all.tails.empty()) {
      note_vain_query(c.name);
      return cudaErrorNotReady;
    }
    learn(all);
    return cudaSuccess;
  });
}

cudaError_t CUDARTAPI cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event,
                                          unsigned int flags) {
  return call(__func__, ordinary, [&](api_call& c) {
    if ((flags & ~unsigned{cudaEventWaitExternal}) != 0) return cudaErrorInvalidValue;
    std::shared_ptr<stream_state> stream;
    std::shared_ptr<event_state> what;
    if (auto const error = get_stream(c, handle, stream); error != cudaSuccess) return error;
    if (auto const error = get_event(c, event, what); error != cudaSuccess) return error;
    return wait(c, stream, what, flags);
  });
}

cudaError_t CUDARTAPI cudaStreamGetId(cudaStream_t handle, unsigned long long* id) {
  return look(__func__, handle, [&](stream_state const& stream) {
    if (id == nullptr) return cudaErrorInvalidValue;
    *id = stream.id;
    return cudaSuccess;
  });
}

cudaError_t CUDARTAPI cudaStreamGetDevice(cudaStream_t handle, int* device) {
  return look(__func__, handle, [&](stream_state const& stream) {
    if (device == nullptr) return cudaErrorInvalidValue;
    *device = stream.device;
    return cudaSuccess;
  });
}

cudaError_t CUDARTAPI cudaStreamGetFlags(cudaStream_t handle, unsigned int* flags) {
  return look(__func__, handle, [&](stream_state const& stream) {
    if (flags == nullptr) return cudaErrorInvalidValue;
    *flags = stream.flags;
    return cudaSuccess;
  });
}

// Allowed on a capturing stream, unlike the others.
cudaError_t CUDARTAPI cudaStreamGetPriority(cudaStream_t handle, int* priority) {
  return call(__func__, ordinary, [&](api_call& c) {
    std::shared_ptr<stream_state> stream;
    if (auto const error = get_stream(c, handle, stream); error != cudaSuccess) return error;
    if (priority == nullptr) return cudaErrorInvalidValue;
    *priority = stream->priority;
    return cudaSuccess;
  });
}
}
