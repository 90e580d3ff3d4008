// A recapture: captured work takes the place of that of the graph's nodes, one after the other.
#pragma once

#include "captures.hpp"

#include <escrow/sim/recapture.hpp>

namespace escrow::sim::model {

// Begins it. The graph's references are released first, on the calling thread.
cudaError_t begin_recapture(api_call& c, std::shared_ptr<stream_state> const& stream,
                            cudaStreamCaptureMode mode, std::shared_ptr<graph_state> const& graph,
                            cudaGraphRecaptureCallbackData const* callback);
// In place of a new node's: the work of the next node in their order.
cudaError_t recapture_work(api_call& c, stream_state& stream, cudaGraphNodeType type, work what);

}  // namespace escrow::sim::model
