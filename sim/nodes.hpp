// SPDX-License-Identifier: Apache-2.0
// What graph nodes do: work made from CUDA's parameters, and what an exec's node may change to.
#pragma once

#include "call.hpp"

#include <memory>

namespace escrow::sim::model {

// Ends the process if the node was destroyed, and nothing has its handle: CUDA's driver would read
// freed memory.
void refuse_destroyed(char const* call, cudaGraphNode_t node);

// The state's mutex is held by whoever calls these. Each sets `what`, or returns an error.

cudaError_t make_work(cudaKernelNodeParams const& params, work& what);
cudaError_t make_work(cudaMemsetParams const& params, work& what);
// The same, also if it ends beyond its memory. CUDA takes it so in a capture (measured).
cudaError_t make_fill(cudaMemsetParams const& params, work& what);
cudaError_t make_work(cudaMemcpy3DParms const& params, work& what);
cudaError_t make_work(cudaHostNodeParams const& params, work& what);
cudaError_t make_record_work(cudaEvent_t event, work& what);
cudaError_t make_wait_work(cudaEvent_t event, work& what);
// For a node of `graph`: an embedded copy of `child`, or `child` itself if it moves.
cudaError_t make_child_work(graph_state const& graph, cudaGraph_t child, bool moves, work& what);
// Of the kinds that can be set again after a node has been made.
cudaError_t make_work(cudaGraphNodeParams const& params, work& what);

// A copy of so many bytes.
cudaMemcpy3DParms linear(void* to, void const* from, std::size_t bytes, cudaMemcpyKind kind);
// A copy of rows.
cudaMemcpy3DParms rows(cudaPitchedPtr to, cudaPitchedPtr from, std::size_t width,
                       std::size_t height, cudaMemcpyKind kind);

// True if an update may give a node of an exec the work `now` in place of `old`.
bool may_become(work const& old, work const& now);
// How an update reports that it may not.
cudaGraphExecUpdateResult refusal(work const& old, work const& now);
// False: a launch attribute of a kernel's node reads as cudaErrorInvalidValue.
bool read_attribute(kernel_work const& kernel, int id, cudaLaunchAttributeValue& value);
// Sets one, or returns an error: not all of a launch are a node's.
cudaError_t write_attribute(kernel_work& kernel, int id, cudaLaunchAttributeValue value);
// None of its fills ends beyond its memory.
bool fills_are_legal(graph_state const& graph);
// Of a kernel: its clusters, if any, divide its grid.
bool has_whole_clusters(work const& what);
// Setting a node's parameters leaves its attributes.
void keep_attributes(work const& old, work& now);
// The clusters that an update leaves as they were, without an error. `is_used`: the exec was
// launched or uploaded.
void keep_clusters(work const& old, work& now, bool is_used);
// True if a call that sets the parameters of an exec's node may do so; less than an update may.
bool may_be_set_to(work const& old, work const& now);

}  // namespace escrow::sim::model
