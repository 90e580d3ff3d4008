// Streams and events: looking up handles, making and closing streams, recording and waiting.
#pragma once

#include "call.hpp"

namespace escrow::sim::model {

// The stream behind a handle, default streams included; null if there is none.
std::shared_ptr<CUstream_st> find_stream(api_call& c, cudaStream_t handle);
// Sets `stream`; an error if the handle is bad or the stream's device has failed.
cudaError_t get_stream(api_call& c, cudaStream_t handle, std::shared_ptr<CUstream_st>& stream);
// Sets `event`; an error if the handle is bad or the event's device has failed.
cudaError_t get_event(api_call& c, cudaEvent_t handle, std::shared_ptr<CUevent_st>& event);

std::shared_ptr<CUstream_st> make_stream(int device, unsigned int flags, int priority);
// The handle is gone at once; the stream goes when its work is done.
void close_stream(CUstream_st& stream);

// Puts work on a stream, or into the graph if the stream captures.
cudaError_t enqueue(api_call& c, cudaStream_t handle, cudaGraphNodeType type, work what);

cudaError_t record(api_call& c, std::shared_ptr<CUevent_st> const& event,
                   std::shared_ptr<CUstream_st> const& stream, unsigned int flags);
cudaError_t wait(api_call& c, std::shared_ptr<CUstream_st> const& stream,
                 std::shared_ptr<CUevent_st> const& event, unsigned int flags);

}  // namespace escrow::sim::model
