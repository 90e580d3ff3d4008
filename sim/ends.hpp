// SPDX-License-Identifier: Apache-2.0
// The ends of a stream that captures: the nodes that its next captured work depends on.
#pragma once

#include "objects.hpp"

namespace escrow::sim::model {

// `edges`: as many, or null if all are full.
void set_ends(stream_state& stream, frontier ends, cudaGraphEdgeData const* edges);
// What comes next is a programmatic launch: it waits for no more of kernels than that they
// trigger.
void expect_triggers(stream_state& stream);
void add_ends(stream_state& stream, frontier const& ends, cudaGraphEdgeData const* edges);

}  // namespace escrow::sim::model
