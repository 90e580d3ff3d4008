// SPDX-License-Identifier: Apache-2.0
// What nodes of execs do: set again for the launches to come, switched off and on.
#include "api.hpp"
#include "execs.hpp"
#include "families.hpp"
#include "graphs.hpp"
#include "nodes.hpp"

using namespace escrow::sim::model;  // What this file gives C names to.

namespace {

// The exec's own node for one of the graph it was made from.
cudaError_t find(cudaGraphExec_t handle, cudaGraphNode_t node, std::shared_ptr<exec_state>& exec,
                 cudaGraphNode_t& twin) {
  exec = find_exec(handle);
  if (exec == nullptr || node == nullptr) return cudaErrorInvalidValue;
  twin = find_twin(*exec->graph, node);
  return twin == nullptr ? cudaErrorInvalidValue : cudaSuccess;
}

// `make` sets the new work, or returns an error.
template <class Make>
cudaError_t set(char const* name, cudaGraphExec_t handle, cudaGraphNode_t node,
                cudaGraphNodeType type, Make make) {
  return call(name, ordinary, [&](api_call& c) {
    std::shared_ptr<exec_state> exec;
    cudaGraphNode_t twin = nullptr;
    if (auto const error = find(handle, node, exec, twin); error != cudaSuccess) return error;
    if (twin->type != type) return cudaErrorInvalidValue;
    work what;
    if (auto const error = make(what); error != cudaSuccess) return error;
    if (!may_be_set_to(twin->what, what)) return cudaErrorInvalidValue;
    keep_attributes(twin->what, what);
    part_from_launches(*exec, c.reclaimed);
    find_twin(*exec->graph, node)->what = std::move(what);
    return cudaSuccess;
  });
}

template <class Params>
cudaError_t set_with(char const* name, cudaGraphExec_t exec, cudaGraphNode_t node,
                     cudaGraphNodeType type, Params const* params) {
  return set(name, exec, node, type, [&](work& what) {
    return params == nullptr ? cudaErrorInvalidValue : make_work(*params, what);
  });
}

cudaError_t set_child(char const* name, cudaGraphExec_t handle, cudaGraphNode_t node,
                      cudaGraph_t child) {
  return call(name, ordinary, [&](api_call& c) {
    std::shared_ptr<exec_state> exec;
    cudaGraphNode_t twin = nullptr;
    auto const graph = find_graph(child);
    if (auto const error = find(handle, node, exec, twin); error != cudaSuccess) return error;
    if (graph == nullptr || graph->moved) return cudaErrorInvalidValue;
    enter_own(c, *graph);
    part_from_launches(*exec, c.reclaimed);
    return update_child(*exec, *find_twin(*exec->graph, node), *graph, c.reclaimed);
  });
}

bool can_be_disabled(CUgraphNode_st const& node) {
  return node.type == cudaGraphNodeTypeKernel || node.type == cudaGraphNodeTypeMemset ||
         node.type == cudaGraphNodeTypeMemcpy;
}

// `use` gets the exec and its node, if that is of a kind that can be disabled.
template <class Use>
cudaError_t with_switch(char const* name, cudaGraphExec_t handle, cudaGraphNode_t node, Use use) {
  return call(name, ordinary, [&](api_call& c) {
    std::shared_ptr<exec_state> exec;
    cudaGraphNode_t twin = nullptr;
    if (auto const error = find(handle, node, exec, twin); error != cudaSuccess) return error;
    return can_be_disabled(*twin) ? use(c, *exec, *twin) : cudaErrorInvalidValue;
  });
}

}  // namespace

extern "C" {

cudaError_t CUDARTAPI cudaGraphExecKernelNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
                                                       cudaKernelNodeParams const* params) {
  return set_with(__func__, exec, node, cudaGraphNodeTypeKernel, params);
}

cudaError_t CUDARTAPI cudaGraphExecMemsetNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
                                                       cudaMemsetParams const* params) {
  return set_with(__func__, exec, node, cudaGraphNodeTypeMemset, params);
}

cudaError_t CUDARTAPI cudaGraphExecMemcpyNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
                                                       cudaMemcpy3DParms const* params) {
  return set_with(__func__, exec, node, cudaGraphNodeTypeMemcpy, params);
}

cudaError_t CUDARTAPI cudaGraphExecMemcpyNodeSetParams1D(cudaGraphExec_t exec, cudaGraphNode_t node,
                                                         void* to, void const* from,
                                                         std::size_t bytes, cudaMemcpyKind kind) {
  auto const params = linear(to, from, bytes, kind);
  return set_with(__func__, exec, node, cudaGraphNodeTypeMemcpy, &params);
}

cudaError_t CUDARTAPI cudaGraphExecHostNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
                                                     cudaHostNodeParams const* params) {
  return set_with(__func__, exec, node, cudaGraphNodeTypeHost, params);
}

cudaError_t CUDARTAPI cudaGraphExecEventRecordNodeSetEvent(cudaGraphExec_t exec,
                                                           cudaGraphNode_t node,
                                                           cudaEvent_t event) {
  return set(__func__, exec, node, cudaGraphNodeTypeEventRecord,
             [&](work& what) { return make_record_work(event, what); });
}

cudaError_t CUDARTAPI cudaGraphExecEventWaitNodeSetEvent(cudaGraphExec_t exec, cudaGraphNode_t node,
                                                         cudaEvent_t event) {
  return set(__func__, exec, node, cudaGraphNodeTypeWaitEvent,
             [&](work& what) { return make_wait_work(event, what); });
}

cudaError_t CUDARTAPI cudaGraphExecChildGraphNodeSetParams(cudaGraphExec_t exec,
                                                           cudaGraphNode_t node,
                                                           cudaGraph_t child) {
  return set_child(__func__, exec, node, child);
}

cudaError_t CUDARTAPI cudaGraphExecNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
                                                 cudaGraphNodeParams* params) {
  auto const type = params == nullptr ? cudaGraphNodeTypeEmpty : params->type;
  if (type == cudaGraphNodeTypeGraph) return set_child(__func__, exec, node, params->graph.graph);
  return set_with(__func__, exec, node, type, params);
}

cudaError_t CUDARTAPI cudaGraphNodeSetEnabled(cudaGraphExec_t handle, cudaGraphNode_t node,
                                              unsigned int enabled) {
  return with_switch(__func__, handle, node,
                     [&](api_call& c, exec_state& exec, CUgraphNode_st const&) {
                       part_from_launches(exec, c.reclaimed);
                       find_twin(*exec.graph, node)->enabled = enabled != 0;
                       return cudaSuccess;
                     });
}

cudaError_t CUDARTAPI cudaGraphNodeGetEnabled(cudaGraphExec_t handle, cudaGraphNode_t node,
                                              unsigned int* enabled) {
  return with_switch(__func__, handle, node,
                     [&](api_call&, exec_state const&, CUgraphNode_st const& twin) {
                       if (enabled == nullptr) return cudaErrorInvalidValue;
                       *enabled = twin.enabled ? 1 : 0;
                       return cudaSuccess;
                     });
}
}
