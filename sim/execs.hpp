// SPDX-License-Identifier: Apache-2.0
// Execs: instantiation, update, and the end of their references.
#pragma once

#include "call.hpp"

namespace escrow::sim::model {

// The state's mutex is held by whoever calls these.

std::shared_ptr<exec_state> find_exec(cudaGraphExec_t handle);

cudaError_t instantiate(graph_state& source, int device, unsigned long long flags,
                        callbacks& reclaimed, cudaGraphExec_t* handle);
// The references go now, on the calling thread, if the exec was never launched; later, by CUDA's
// own thread, if it was. Blocks, with the lock let go, until launches and uploads in flight are
// done if there are conditional nodes.
void destroy_exec(api_call& c, std::shared_ptr<exec_state> const& exec);

// Gives the exec the parameters and references of `source`, if that has the same shape.
cudaError_t update(exec_state& exec, graph_state const& source,
                   cudaGraphExecUpdateResultInfo& result, callbacks& reclaimed);
// The exec's own copy of a node of the graph it was made from; null if there is none.
cudaGraphNode_t find_twin(graph_state const& graph, cudaGraphNode_t origin);
// Gives an embedded child of the exec the parameters and references of `source`, if that has the
// same shape.
cudaError_t update_child(exec_state& exec, CUgraphNode_st& twin, graph_state const& source,
                         callbacks& reclaimed);

// Gives the exec a copy of its own nodes if launches that run may still look at these: what is set
// then concerns later launches alone.
void part_from_launches(exec_state& exec, callbacks& reclaimed);

}  // namespace escrow::sim::model
