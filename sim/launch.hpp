// Execs: instantiation, update, launch, and the end of their references.
#pragma once

#include "call.hpp"

#include <functional>

namespace escrow::sim::model {

// The state's mutex is held by whoever calls these.

std::shared_ptr<CUgraphExec_st> find_exec(cudaGraphExec_t handle);

cudaError_t instantiate(CUgraph_st& source, int device, unsigned long long flags,
                        callbacks& reclaimed, cudaGraphExec_t* handle);
// The references go now, on the calling thread, if the exec was never launched; later, by CUDA's
// own thread, if it was. Blocks, with the lock let go, until launches and uploads in flight are
// done if there are conditional nodes.
void destroy_exec(api_call& c, std::shared_ptr<CUgraphExec_st> const& exec);

// Gives the exec the parameters and references of `source`, if that has the same shape.
cudaError_t update(CUgraphExec_st& exec, CUgraph_st const& source,
                   cudaGraphExecUpdateResultInfo& result, callbacks& reclaimed);
// The exec's own copy of a node of the graph it was made from; null if there is none.
cudaGraphNode_t find_twin(CUgraph_st const& graph, cudaGraphNode_t origin);
// Gives an embedded child of the exec the parameters and references of `source`, if that has the
// same shape.
cudaError_t update_child(CUgraphExec_st& exec, CUgraphNode_st& twin, CUgraph_st const& source,
                         callbacks& reclaimed);

// Gives the exec a copy of its own nodes if launches that run may still look at these: what is set
// then concerns later launches alone.
void part_from_launches(CUgraphExec_st& exec, callbacks& reclaimed);

// Blocks, with the lock let go, until copies to pageable memory are done.
cudaError_t launch(api_call& c, std::shared_ptr<CUgraphExec_st> const& exec,
                   std::shared_ptr<CUstream_st> const& stream);

// Work on the stream, after earlier uploads and launches of the exec.
void upload(CUgraphExec_st& exec, std::shared_ptr<CUstream_st> const& stream);

// Runs a sorted graph as part of `o`, which is not completed by it; then calls `finished`.
void run_inside(CUgraph_st const& graph, op_ptr const& o, std::function<void()> finished);

}  // namespace escrow::sim::model
