// SPDX-License-Identifier: Apache-2.0
// A recapture: captured work takes the place of that of the graph's nodes, one after the other.
#pragma once

#include "call.hpp"

namespace escrow::sim::model {

// In place of a new node's: the work of the next node in their order.
cudaError_t recapture_work(api_call& c, stream_state& stream, cudaGraphNodeType type, work what);

}  // namespace escrow::sim::model
