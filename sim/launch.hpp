// SPDX-License-Identifier: Apache-2.0
// Launching execs: a launch turns the exec's nodes into operations.
#pragma once

#include "call.hpp"

namespace escrow::sim::model {

// The state's mutex is held by whoever calls these.

// Blocks, with the lock let go, until copies to pageable memory are done.
cudaError_t launch(api_call& c, std::shared_ptr<exec_state> const& exec,
                   std::shared_ptr<stream_state> const& stream);

// Work on the stream, after earlier uploads and launches of the exec.
void upload(exec_state& exec, std::shared_ptr<stream_state> const& stream);

}  // namespace escrow::sim::model
