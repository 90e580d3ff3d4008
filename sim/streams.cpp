// SPDX-License-Identifier: Apache-2.0
// Streams and events: looking up handles, making and closing streams, recording and waiting.
#include "streams.hpp"

#include "accesses.hpp"
#include "captures.hpp"
#include "claims.hpp"
#include "ends.hpp"
#include "operands.hpp"
#include "ops.hpp"
#include "races.hpp"
#include "runner.hpp"

#include <array>

namespace escrow::sim::model {
namespace {

std::shared_ptr<stream_state> thread_stream(thread_record& me) {
  auto& stream = me.default_streams[me.device];
  if (stream == nullptr) stream = make_stream(me.device, cudaStreamDefault, 0);
  return stream;
}

// A stream that does not capture waits on an event of a capture in progress: it becomes part of
// that capture.
cudaError_t fork(api_call& c, stream_state& stream, event_state const& event) {
  auto const& joined = event.captured_in;
  if (stream.legacy) {
    invalidate(c, *joined);
    return cudaErrorStreamCaptureImplicit;
  }
  stream.capturing = joined;
  joined->streams.push_back(&stream);
  set_ends(stream, event.captured_at, event.captured_edges.data());
  return cudaSuccess;
}

cudaError_t wait_on_captured(api_call& c, stream_state& stream, event_state const& event) {
  auto const& other = event.captured_in;
  if (other->is_over()) {
    if (stream.capturing != nullptr) invalidate(c, *stream.capturing);
    return cudaErrorInvalidValue;
  }
  if (stream.capturing == nullptr) return fork(c, stream, event);
  if (stream.capturing != other) {
    invalidate(c, *other);
    invalidate(c, *stream.capturing);
    return cudaErrorStreamCaptureMerge;
  }
  // Nodes that are before others in the list stay in it: CUDA does not look for superfluous edges.
  add_ends(stream, event.captured_at, event.captured_edges.data());
  return cudaSuccess;
}

}  // namespace

bool is_default_stream(cudaStream_t handle) {
  return handle == nullptr || handle == cudaStreamLegacy || handle == cudaStreamPerThread;
}

std::shared_ptr<stream_state> find_made_stream(char const* call, cudaStream_t handle) {
  auto const& all = the().streams;
  auto stream = all.find(handle);
  if (stream == nullptr && !all.is_lost(handle)) {
    give_up(std::string(call) + " on " + describe_this_thread() +
            " with a stream that was destroyed: CUDA's driver crashes; a stream outlives the "
            "leases, claimers, launchers and release_at_end() on it: end them before it, e.g. by "
            "declaring it first");
  }
  return stream;
}

std::shared_ptr<stream_state> find_stream(api_call& c, cudaStream_t handle) {
  if (handle == nullptr || handle == cudaStreamLegacy) {
    return c.s.devices[static_cast<std::size_t>(c.me.device)].legacy;
  }
  if (handle == cudaStreamPerThread) return thread_stream(c.me);
  return find_made_stream(c.name, handle);
}

cudaError_t get_stream(api_call& c, cudaStream_t handle, std::shared_ptr<stream_state>& stream) {
  stream = find_stream(c, handle);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  c.note_user();
  refuse_beside_capture_change(c, *stream);
  return fault();
}

cudaError_t get_event(api_call& c, cudaEvent_t handle, std::shared_ptr<event_state>& event) {
  event = c.s.events.find(handle);
  return event == nullptr ? cudaErrorInvalidResourceHandle : fault();
}

std::shared_ptr<stream_state> make_stream(int device, unsigned int flags, int priority) {
  auto& s = the();
  auto stream = std::make_shared<stream_state>();
  stream->device = device;
  stream->id = ++s.next_id;
  stream->at.own.stream = stream->id;
  s.known_done.add_stream(stream->id);
  stream->flags = flags;
  stream->priority = priority;
  stream->runs_on = std::make_shared<executor>();
  s.devices[static_cast<std::size_t>(device)].streams.emplace(stream->id, stream);
  return stream;
}

void close_stream(stream_state& stream) {
  stream.closed = true;
  // The legacy stream waits for blocking ones, also when they are gone.
  auto const& legacy = the().devices[static_cast<std::size_t>(stream.device)].legacy;
  come_behind(legacy->at, stream.at, the().known_done);
  if (stream.pending == 0) forget_stream(stream);
  the().streams.erase(stream.handle);
}

void wait_for_frees(api_call& c, cudaStream_t handle) {
  if (!c.s.how.frees_block_launches || c.s.waiting_frees == 0) return;
  auto const stream = find_stream(c, handle);
  if (stream == nullptr || stream->capturing != nullptr) return;
  block(
      c.lock, [&] { return c.s.waiting_frees == 0; }, c.name);
}

cudaError_t enqueue(api_call& c, cudaStream_t handle, cudaGraphNodeType type, work what) {
  std::shared_ptr<stream_state> stream;
  if (auto const error = get_stream(c, handle, stream); error != cudaSuccess) return error;
  take_given(c.me, what);
  if (stream->capturing != nullptr) return capture_work(c, *stream, type, std::move(what));
  if (auto const error = forbid_legacy(c, *stream); error != cudaSuccess) return error;
  auto const uses = refuse_operands(c.name, what);
  std::vector<access> accesses;
  add_accesses(what, accesses);
  ++c.me.eager_work;
  stage(what);
  bool const blocks = blocks_caller(what);
  op_ptr const enqueued = append(stream, std::move(what));
  note_uses(c.name, enqueued, uses);
  make_claimed_new(enqueued);
  note_accesses(c.name, *stream, accesses);
  release(enqueued);
  if (blocks) block_on(c.lock, {enqueued}, c.name);
  return cudaSuccess;
}

cudaError_t record(api_call& c, std::shared_ptr<event_state> const& event,
                   std::shared_ptr<stream_state> const& stream, unsigned int flags) {
  if (event->device != stream->device) return cudaErrorInvalidResourceHandle;
  auto const& capture = stream->capturing;
  if ((flags & cudaEventRecordExternal) != 0) {
    if (capture == nullptr) return cudaErrorIllegalState;
    return capture_work(c, *stream, cudaGraphNodeTypeEventRecord, record_work{event});
  }
  if (capture == nullptr) {
    if (auto const error = forbid_legacy(c, *stream); error != cudaSuccess) return error;
    event->captured_in = nullptr;
    event->last = append(stream, empty_work{});
    make_claimed_new(event->last);  // what waits for the event may use it
    release(event->last);
    return cudaSuccess;
  }
  if (capture->invalidated) return cudaErrorStreamCaptureInvalidated;
  event->last = nullptr;
  event->captured_in = capture;
  event->captured_at = stream->ends;
  event->captured_edges = stream->end_edges;
  return cudaSuccess;
}

cudaError_t wait(api_call& c, std::shared_ptr<stream_state> const& stream,
                 std::shared_ptr<event_state> const& event, unsigned int flags) {
  auto const& capture = stream->capturing;
  if ((flags & cudaEventWaitExternal) != 0) {
    if (capture == nullptr) return cudaErrorInvalidValue;
    return capture_work(c, *stream, cudaGraphNodeTypeWaitEvent, wait_work{event});
  }
  if (capture != nullptr && capture->invalidated) return cudaErrorStreamCaptureInvalidated;
  if (event->captured_in != nullptr) return wait_on_captured(c, *stream, *event);
  // An event never recorded is one there is nothing to wait for, also in a capture.
  if (capture != nullptr && event->last == nullptr) return cudaSuccess;
  if (capture != nullptr) {
    invalidate(c, *capture);
    return cudaErrorStreamCaptureIsolation;
  }
  if (auto const error = forbid_legacy(c, *stream); error != cudaSuccess) return error;
  if (event->last == nullptr) return cudaSuccess;
  if (event->last->done) {
    come_behind(stream->at, event->last->at, c.s.known_done);
  } else {
    submit(stream, empty_work{}, std::array{event->last});
  }
  return cudaSuccess;
}

}  // namespace escrow::sim::model

unsigned long long escrow_simulated_eager_work() noexcept {
  auto& s = escrow::sim::model::the();
  std::lock_guard const lock(s.mutex);
  return escrow::sim::model::this_thread_unchecked().eager_work;
}
