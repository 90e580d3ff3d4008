// SPDX-License-Identifier: Apache-2.0
// Streams and events: looking up handles, making and closing streams, recording and waiting.
#pragma once

#include "call.hpp"

namespace escrow::sim::model {

bool is_default_stream(cudaStream_t handle);
// The stream that was made with the handle; null if a reset has ended it. If it was destroyed the
// process ends, as in CUDA's driver: `call` is for the message.
std::shared_ptr<stream_state> find_made_stream(char const* call, cudaStream_t handle);
// The same, for handles of default streams too.
std::shared_ptr<stream_state> find_stream(api_call& c, cudaStream_t handle);
// Sets `stream`; an error if a reset has ended it or a device has failed.
cudaError_t get_stream(api_call& c, cudaStream_t handle, std::shared_ptr<stream_state>& stream);
// Sets `event`; an error if the handle is bad or the event's device has failed.
cudaError_t get_event(api_call& c, cudaEvent_t handle, std::shared_ptr<event_state>& event);

std::shared_ptr<stream_state> make_stream(int device, unsigned int flags, int priority);
// The handle is gone at once; the stream goes when its work is done.
void close_stream(stream_state& stream);

// Blocks a launch outside of captures while a call frees memory, if options::frees_block_launches.
void wait_for_frees(api_call& c, cudaStream_t handle);

// Puts work on a stream, or into the graph if the stream captures.
cudaError_t enqueue(api_call& c, cudaStream_t handle, cudaGraphNodeType type, work what);

cudaError_t record(api_call& c, std::shared_ptr<event_state> const& event,
                   std::shared_ptr<stream_state> const& stream, unsigned int flags);
cudaError_t wait(api_call& c, std::shared_ptr<stream_state> const& stream,
                 std::shared_ptr<event_state> const& event, unsigned int flags);

}  // namespace escrow::sim::model

// How much the calling thread has put on streams that did not capture. For Escrow's texts.
extern "C" [[gnu::visibility("hidden")]] unsigned long long escrow_simulated_eager_work() noexcept;
