// SPDX-License-Identifier: Apache-2.0
// Stream capture: what it allows, what kills it, and how captured work becomes nodes.
#pragma once

#include "call.hpp"

namespace escrow::sim::model {

// Kills the capture and notes who did it.
void invalidate(api_call const& c, capture& which);

// For a call that is unsafe while a capture that concerns this thread is in progress: kills those
// captures and returns cudaErrorStreamCaptureUnsupported, or cudaSuccess if there are none.
cudaError_t forbid_unsafe(api_call& c);
// For work on the legacy stream, which would wait for a blocking stream that captures.
cudaError_t forbid_legacy(api_call& c, stream_state const& stream);
// True if a blocking stream of the legacy stream's device captures.
bool blocked_by_capture(stream_state const& legacy);
// For a call that no capture survives.
cudaError_t forbid_all(api_call& c, int device);

// Adds a node behind the stream's captured work.
cudaError_t capture_work(api_call& c, stream_state& stream, cudaGraphNodeType type, work what);

// Ends the process if another thread is just beginning or ending the stream's capture.
void refuse_beside_capture_change(api_call const& c, stream_state const& stream);
cudaError_t begin_capture(api_call& c, std::shared_ptr<stream_state> const& stream,
                          cudaStreamCaptureMode mode, std::shared_ptr<graph_state> const& into,
                          frontier ends, cudaGraphEdgeData const* edges);
// The same for a graph that is captured again. Its references are released first, on the calling
// thread.
cudaError_t begin_recapture(api_call& c, std::shared_ptr<stream_state> const& stream,
                            cudaStreamCaptureMode mode, std::shared_ptr<graph_state> const& graph,
                            cudaGraphRecaptureCallbackData const* callback);
cudaError_t end_capture(api_call& c, stream_state& stream, cudaGraph_t* graph);
// The stream is being destroyed while it captures.
void abandon_capture(api_call& c, stream_state& stream);

}  // namespace escrow::sim::model
