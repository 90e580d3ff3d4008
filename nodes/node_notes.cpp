// SPDX-License-Identifier: Apache-2.0
// The texts.
#include "node_notes.hpp"

#include "escrow/nodes/launch.hpp"
#include "graph_tree.hpp"

namespace escrow::inline v0_2 {

namespace {

// Why CUDA refuses a kernel of this shape, if it is one.
std::string kernel_note(cudaError_t status, cudaGraphNodeParams const& params) {
  if (params.type != cudaGraphNodeTypeKernel) return "";
  auto const& its = params.kernel;
  launch_config const config{
      .grid = its.gridDim, .block = its.blockDim, .shared_bytes = its.sharedMemBytes};
  return detail::misfit_note(status, kernel(static_cast<void const*>(its.func)), config);
}

}  // namespace

std::string add_note(cudaError_t status, cudaGraphNodeParams const& params) {
  if (params.type == cudaGraphNodeTypeMemAlloc &&
      (status == cudaErrorInvalidValue || status == cudaErrorInvalidDevice)) {
    return "`device`, or one of `peers`, is no device, or a peer cannot reach that device's memory "
           "(cudaDeviceCanAccessPeer): name other devices in `config`";
  }
  if (params.type != cudaGraphNodeTypeMemFree || status != cudaErrorInvalidValue) {
    return kernel_note(status, params);
  }
  return "`address` is not memory of an alloc_node, or another node frees it: free each allocation "
         "once, by its address()";
}

std::string change_note(cudaError_t status, cudaGraphNode_t changed,
                        cudaGraphNodeParams const& params, bool names_clusters) {
  if (status == cudaErrorInvalidClusterSize && !names_clusters) {
    return "`grid` is no multiple of the node's clusters, which it keeps unless `config` has "
           "others";
  }
  if (status != cudaErrorInvalidValue && status != cudaErrorNotSupported) {
    return kernel_note(status, params);
  }
  cudaGraphNodeType type{};
  if (!succeeded(cudaGraphNodeGetType(changed, &type))) return "";
  if (type != params.type) {
    return std::string("the node is of kind ") + kind_name(type) + ", `kind` is of kind " +
           kind_name(params.type) + ": destroy the node, and add another";
  }
  if (type == cudaGraphNodeTypeMemFree) {
    return "CUDA does not change a node that frees memory: destroy it, and add another";
  }
  return kernel_note(status, params);
}

std::string exec_note(cudaError_t status, cudaGraphNode_t changed,
                      cudaGraphNodeParams const& params, char const* suspected) {
  std::string known = change_note(status, changed, params);
  bool const is_refused = status == cudaErrorInvalidValue || status == cudaErrorNotSupported ||
                          status == cudaErrorGraphExecUpdateFailure;
  return known.empty() && is_refused ? suspected : known;
}

std::string switch_note(cudaError_t status, cudaGraphNode_t asked) {
  cudaGraphNodeType type{};
  if (status != cudaErrorInvalidValue || !succeeded(cudaGraphNodeGetType(asked, &type))) return "";
  if (type == cudaGraphNodeTypeKernel || type == cudaGraphNodeTypeMemset ||
      type == cudaGraphNodeTypeMemcpy) {
    return "the node is younger than the exec: make another graph_exec";
  }
  return std::string("the node is of kind ") + kind_name(type) +
         ": CUDA disables kernels, memsets and memcpies only";
}

std::string destroy_note(cudaError_t status) {
  if (status != cudaErrorNotSupported) return "";
  return "CUDA removes no node from a graph with memory nodes: build the graph anew, without it";
}

}  // namespace escrow::inline v0_2
