// SPDX-License-Identifier: Apache-2.0
// What nodes of graphs do: read back, and set again.
#include "api.hpp"
#include "families.hpp"
#include "graph_memory.hpp"
#include "graphs.hpp"
#include "nodes.hpp"

using namespace escrow::sim::model;  // What this file gives C names to.

namespace {

// `put` hands out the node's work, if it is of the kind that is asked for, or returns an error.
template <class Work, class Out, class Put>
cudaError_t try_get(char const* name, cudaGraphNode_t node, Out* out, Put put) {
  return call(name, outlives_fault, [&](api_call&) {
    refuse_destroyed(name, node);
    auto* const what = node == nullptr ? nullptr : std::get_if<Work>(&node->what);
    return what == nullptr || out == nullptr ? cudaErrorInvalidValue : put(*what);
  });
}

// The same where `put` cannot fail.
template <class Work, class Out, class Put>
cudaError_t get(char const* name, cudaGraphNode_t node, Out* out, Put put) {
  return try_get<Work>(name, node, out, [&](Work& what) {
    put(what);
    return cudaSuccess;
  });
}

// `make` sets the new work, or returns an error.
template <class Make>
cudaError_t set(char const* name, cudaGraphNode_t node, cudaGraphNodeType type, Make make) {
  return call(name, outlives_fault, [&](api_call&) {
    refuse_destroyed(name, node);
    if (node == nullptr || node->type != type) return cudaErrorInvalidValue;
    work what;
    if (auto const error = make(what); error != cudaSuccess) return error;
    keep_attributes(node->what, what);
    if (!has_whole_clusters(what)) return cudaErrorInvalidClusterSize;
    node->what = std::move(what);
    return cudaSuccess;
  });
}

template <class Params>
cudaError_t set_with(char const* name, cudaGraphNode_t node, cudaGraphNodeType type,
                     Params const* params) {
  return set(name, node, type, [&](work& what) {
    return params == nullptr ? cudaErrorInvalidValue : make_work(*params, what);
  });
}

// The copy that was there goes, with its references, before the call returns.
cudaError_t set_child(char const* name, cudaGraphNode_t node, cudaGraph_t child) {
  return call(name, outlives_fault, [&](api_call& c) {
    refuse_destroyed(name, node);
    auto* const old = node == nullptr ? nullptr : std::get_if<child_work>(&node->what);
    if (old == nullptr) return cudaErrorInvalidValue;
    work what;
    auto const error = make_child_work(*node->graph, child, false, what);
    if (error != cudaSuccess) return error;
    enter_families(c, *old->graph);
    dismantle(old->graph, c.reclaimed);
    node->what = std::move(what);
    auto const& made = std::get<child_work>(node->what).graph;
    made->parent = node->graph;
    enter_links(c, *made);
    return cudaSuccess;
  });
}

}  // namespace

extern "C" {

cudaError_t CUDARTAPI cudaGraphKernelNodeGetParams(cudaGraphNode_t node,
                                                   cudaKernelNodeParams* params) {
  return try_get<kernel_work>(__func__, node, params, [&](kernel_work& kernel) {
    // The runtime looks for the symbol that the kernel is linked in under: a library's has none.
    if (kernel.code->of_library) return cudaErrorInvalidDeviceFunction;
    kernel.pointers = kernel.args.pointers();
    *params = kernel.shape;
    params->kernelParams = kernel.pointers.data();
    return cudaSuccess;
  });
}

cudaError_t CUDARTAPI cudaGraphKernelNodeGetAttribute(cudaGraphNode_t node,
                                                      cudaLaunchAttributeID id,
                                                      cudaLaunchAttributeValue* value) {
  return try_get<kernel_work>(__func__, node, value, [&](kernel_work const& kernel) {
    return read_attribute(kernel, id, *value) ? cudaSuccess : cudaErrorInvalidValue;
  });
}

cudaError_t CUDARTAPI cudaGraphKernelNodeSetAttribute(cudaGraphNode_t node,
                                                      cudaLaunchAttributeID id,
                                                      cudaLaunchAttributeValue const* value) {
  return try_get<kernel_work>(__func__, node, value, [&](kernel_work& kernel) {
    return write_attribute(kernel, id, *value);
  });
}

cudaError_t CUDARTAPI cudaGraphMemsetNodeGetParams(cudaGraphNode_t node, cudaMemsetParams* params) {
  return get<fill_work>(__func__, node, params,
                        [&](fill_work const& fill) { *params = fill.shape; });
}

cudaError_t CUDARTAPI cudaGraphMemcpyNodeGetParams(cudaGraphNode_t node,
                                                   cudaMemcpy3DParms* params) {
  return get<copy_work>(__func__, node, params,
                        [&](copy_work const& copy) { *params = copy.shape; });
}

cudaError_t CUDARTAPI cudaGraphHostNodeGetParams(cudaGraphNode_t node, cudaHostNodeParams* params) {
  return get<host_work>(__func__, node, params, [&](host_work const& host) {
    *params = {host.run, host.argument};
  });
}

cudaError_t CUDARTAPI cudaGraphEventRecordNodeGetEvent(cudaGraphNode_t node, cudaEvent_t* out) {
  return get<record_work>(__func__, node, out,
                          [&](record_work const& record) { *out = record.event->handle; });
}

cudaError_t CUDARTAPI cudaGraphEventWaitNodeGetEvent(cudaGraphNode_t node, cudaEvent_t* out) {
  return get<wait_work>(__func__, node, out,
                        [&](wait_work const& wait) { *out = wait.event->handle; });
}

cudaError_t CUDARTAPI cudaGraphMemAllocNodeGetParams(cudaGraphNode_t node,
                                                     cudaMemAllocNodeParams* params) {
  return get<alloc_work>(__func__, node, params,
                         [&](alloc_work const& alloc) { *params = alloc.block->params; });
}

cudaError_t CUDARTAPI cudaGraphMemFreeNodeGetParams(cudaGraphNode_t node, void* out) {
  return get<graph_free_work>(__func__, node, out, [&](graph_free_work const& freed) {
    *static_cast<void**>(out) = freed.block->params.dptr;
  });
}

cudaError_t CUDARTAPI cudaGraphKernelNodeSetParams(cudaGraphNode_t node,
                                                   cudaKernelNodeParams const* params) {
  return set_with(__func__, node, cudaGraphNodeTypeKernel, params);
}

cudaError_t CUDARTAPI cudaGraphMemsetNodeSetParams(cudaGraphNode_t node,
                                                   cudaMemsetParams const* params) {
  return set_with(__func__, node, cudaGraphNodeTypeMemset, params);
}

cudaError_t CUDARTAPI cudaGraphMemcpyNodeSetParams(cudaGraphNode_t node,
                                                   cudaMemcpy3DParms const* params) {
  return set_with(__func__, node, cudaGraphNodeTypeMemcpy, params);
}

cudaError_t CUDARTAPI cudaGraphMemcpyNodeSetParams1D(cudaGraphNode_t node, void* to,
                                                     void const* from, std::size_t bytes,
                                                     cudaMemcpyKind kind) {
  auto const params = linear(to, from, bytes, kind);
  return set_with(__func__, node, cudaGraphNodeTypeMemcpy, &params);
}

cudaError_t CUDARTAPI cudaGraphHostNodeSetParams(cudaGraphNode_t node,
                                                 cudaHostNodeParams const* params) {
  return set_with(__func__, node, cudaGraphNodeTypeHost, params);
}

cudaError_t CUDARTAPI cudaGraphEventRecordNodeSetEvent(cudaGraphNode_t node, cudaEvent_t event) {
  return set(__func__, node, cudaGraphNodeTypeEventRecord,
             [&](work& what) { return make_record_work(event, what); });
}

cudaError_t CUDARTAPI cudaGraphEventWaitNodeSetEvent(cudaGraphNode_t node, cudaEvent_t event) {
  return set(__func__, node, cudaGraphNodeTypeWaitEvent,
             [&](work& what) { return make_wait_work(event, what); });
}

cudaError_t CUDARTAPI cudaGraphNodeSetParams(cudaGraphNode_t node, cudaGraphNodeParams* params) {
  auto const type = params == nullptr ? cudaGraphNodeTypeEmpty : params->type;
  if (type == cudaGraphNodeTypeGraph) return set_child(__func__, node, params->graph.graph);
  return set_with(__func__, node, type, params);
}
}
