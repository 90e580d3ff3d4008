// SPDX-License-Identifier: Apache-2.0
// Adding nodes to graphs.
#include "api.hpp"
#include "conditionals.hpp"
#include "edges.hpp"
#include "families.hpp"
#include "graph_memory.hpp"
#include "graphs.hpp"
#include "nodes.hpp"

#include <algorithm>

using namespace escrow::sim::model;  // What this file gives C names to.

namespace {

struct place {
  cudaGraphNode_t* out;
  cudaGraph_t graph;
  cudaGraphNode_t const* before;
  std::size_t count;
  cudaGraphEdgeData const* edges = nullptr;
};

cudaError_t check(place const& where, cudaGraphNodeType type, std::shared_ptr<graph_state>& graph) {
  graph = find_graph(where.graph);
  if (where.out == nullptr || graph == nullptr) return cudaErrorInvalidValue;
  if (where.before == nullptr && where.count != 0) return cudaErrorInvalidValue;
  for (std::size_t i = 0; i < where.count; ++i) {
    if (where.before[i] == nullptr || where.before[i]->graph != graph.get())
      return cudaErrorInvalidValue;
    if (std::find(where.before, where.before + i, where.before[i]) != where.before + i)
      return cudaErrorInvalidValue;
    cudaGraphEdgeData const edge = edge_at(where.edges, i);
    if (!can_begin_at(*where.before[i], edge) || !can_lead_to(type, edge))
      return cudaErrorInvalidValue;
  }
  return cudaSuccess;
}

// `make` sets the work of a node of the graph, or returns an error.
template <class Make>
cudaError_t add(char const* name, place const& where, cudaGraphNodeType type, Make make) {
  return call(name, outlives_fault, [&](api_call& c) {
    std::shared_ptr<graph_state> graph;
    if (auto const error = check(where, type, graph); error != cudaSuccess) return error;
    work what;
    if (auto const error = make(*graph, what); error != cudaSuccess) return error;
    auto const* const child = std::get_if<child_work>(&what);
    if (child != nullptr && !child->graph->moved) enter_links(c, *child->graph);
    *where.out = add_node(*graph, {where.before, where.count}, where.edges, type, std::move(what));
    return cudaSuccess;
  });
}

// For the kinds that take a struct of their own.
template <class Params>
cudaError_t add_with(char const* name, place const& where, cudaGraphNodeType type,
                     Params const* params) {
  return add(name, where, type, [&](graph_state const&, work& what) {
    return params == nullptr ? cudaErrorInvalidValue : make_work(*params, what);
  });
}

cudaError_t alloc_node(graph_state const& graph, cudaMemAllocNodeParamsV2& params, work& what) {
  cudaMemAllocNodeParams same{params.poolProps, params.accessDescs, params.accessDescCount,
                              params.bytesize, nullptr};
  auto const error = make_alloc_work(graph, same, what);
  params.dptr = same.dptr;
  return error;
}

bool is_moved(cudaChildGraphNodeParams const& params) {
#if CUDART_VERSION < 12090  // which always copies
  static_cast<void>(params);
  return false;
#else
  return params.ownership == cudaGraphChildGraphOwnershipMove;
#endif
}

cudaError_t any_node(graph_state const& graph, cudaGraphNodeParams& p, work& what) {
  switch (p.type) {
    case cudaGraphNodeTypeEmpty:
      return cudaSuccess;
    case cudaGraphNodeTypeGraph:
      return make_child_work(graph, p.graph.graph, is_moved(p.graph), what);
    case cudaGraphNodeTypeMemAlloc:
      return alloc_node(graph, p.alloc, what);
    case cudaGraphNodeTypeMemFree:
      return make_graph_free_work(graph, p.free.dptr, what);
    case cudaGraphNodeTypeConditional:
      return make_conditional_work(graph, p.conditional, what);
    default:
      return make_work(p, what);
  }
}

}  // namespace

extern "C" {

cudaError_t CUDARTAPI cudaGraphAddKernelNode(cudaGraphNode_t* out, cudaGraph_t graph,
                                             cudaGraphNode_t const* before, std::size_t count,
                                             cudaKernelNodeParams const* params) {
  return add_with(__func__, {out, graph, before, count}, cudaGraphNodeTypeKernel, params);
}

cudaError_t CUDARTAPI cudaGraphAddEmptyNode(cudaGraphNode_t* out, cudaGraph_t graph,
                                            cudaGraphNode_t const* before, std::size_t count) {
  return add(__func__, {out, graph, before, count}, cudaGraphNodeTypeEmpty,
             [](graph_state const&, work&) { return cudaSuccess; });
}

cudaError_t CUDARTAPI cudaGraphAddHostNode(cudaGraphNode_t* out, cudaGraph_t graph,
                                           cudaGraphNode_t const* before, std::size_t count,
                                           cudaHostNodeParams const* params) {
  return add_with(__func__, {out, graph, before, count}, cudaGraphNodeTypeHost, params);
}

cudaError_t CUDARTAPI cudaGraphAddMemsetNode(cudaGraphNode_t* out, cudaGraph_t graph,
                                             cudaGraphNode_t const* before, std::size_t count,
                                             cudaMemsetParams const* params) {
  return add_with(__func__, {out, graph, before, count}, cudaGraphNodeTypeMemset, params);
}

cudaError_t CUDARTAPI cudaGraphAddMemcpyNode(cudaGraphNode_t* out, cudaGraph_t graph,
                                             cudaGraphNode_t const* before, std::size_t count,
                                             cudaMemcpy3DParms const* params) {
  return add_with(__func__, {out, graph, before, count}, cudaGraphNodeTypeMemcpy, params);
}

cudaError_t CUDARTAPI cudaGraphAddMemcpyNode1D(cudaGraphNode_t* out, cudaGraph_t graph,
                                               cudaGraphNode_t const* before, std::size_t count,
                                               void* to, void const* from, std::size_t bytes,
                                               cudaMemcpyKind kind) {
  auto const params = linear(to, from, bytes, kind);
  return add_with(__func__, {out, graph, before, count}, cudaGraphNodeTypeMemcpy, &params);
}

cudaError_t CUDARTAPI cudaGraphAddChildGraphNode(cudaGraphNode_t* out, cudaGraph_t graph,
                                                 cudaGraphNode_t const* before, std::size_t count,
                                                 cudaGraph_t child) {
  return add(__func__, {out, graph, before, count}, cudaGraphNodeTypeGraph,
             [&](graph_state const& into, work& what) {
               return make_child_work(into, child, false, what);
             });
}

cudaError_t CUDARTAPI cudaGraphAddEventRecordNode(cudaGraphNode_t* out, cudaGraph_t graph,
                                                  cudaGraphNode_t const* before, std::size_t count,
                                                  cudaEvent_t event) {
  return add(__func__, {out, graph, before, count}, cudaGraphNodeTypeEventRecord,
             [&](graph_state const&, work& what) { return make_record_work(event, what); });
}

cudaError_t CUDARTAPI cudaGraphAddEventWaitNode(cudaGraphNode_t* out, cudaGraph_t graph,
                                                cudaGraphNode_t const* before, std::size_t count,
                                                cudaEvent_t event) {
  return add(__func__, {out, graph, before, count}, cudaGraphNodeTypeWaitEvent,
             [&](graph_state const&, work& what) { return make_wait_work(event, what); });
}

cudaError_t CUDARTAPI cudaGraphAddMemAllocNode(cudaGraphNode_t* out, cudaGraph_t graph,
                                               cudaGraphNode_t const* before, std::size_t count,
                                               cudaMemAllocNodeParams* params) {
  return add(__func__, {out, graph, before, count}, cudaGraphNodeTypeMemAlloc,
             [&](graph_state const& into, work& what) {
               return params == nullptr ? cudaErrorInvalidValue
                                        : make_alloc_work(into, *params, what);
             });
}

cudaError_t CUDARTAPI cudaGraphAddMemFreeNode(cudaGraphNode_t* out, cudaGraph_t graph,
                                              cudaGraphNode_t const* before, std::size_t count,
                                              void* address) {
  return add(__func__, {out, graph, before, count}, cudaGraphNodeTypeMemFree,
             [&](graph_state const& into, work& what) {
               return make_graph_free_work(into, address, what);
             });
}

cudaError_t CUDARTAPI cudaGraphAddNode(cudaGraphNode_t* out, cudaGraph_t graph,
                                       cudaGraphNode_t const* before,
                                       cudaGraphEdgeData const* edges, std::size_t count,
                                       cudaGraphNodeParams* params) {
  auto const type = params == nullptr ? cudaGraphNodeTypeEmpty : params->type;
  auto const make = [&](graph_state const& into, work& what) {
    if (params == nullptr) return cudaErrorInvalidValue;
    return any_node(into, *params, what);
  };
  auto const error = add("cudaGraphAddNode", {out, graph, before, count, edges}, type, make);
  if (error == cudaSuccess && type == cudaGraphNodeTypeConditional) {
    // Read after the node has been made: the array is the node's own and stays where it is.
    params->conditional.phGraph_out = std::get<conditional_work>((*out)->what).handles.data();
  }
  return error;
}

cudaError_t CUDARTAPI cudaGraphConditionalHandleCreate(cudaGraphConditionalHandle* out,
                                                       cudaGraph_t handle, unsigned int initial,
                                                       unsigned int flags) {
  return call(__func__, outlives_fault, [&](api_call& c) {
    auto const graph = find_graph(handle);
    if (out == nullptr || graph == nullptr) return cudaErrorInvalidValue;
    if (flags != 0 && flags != cudaGraphCondAssignDefault) return cudaErrorInvalidValue;
    *out = ++c.s.next_id;
    graph->conditions.emplace(*out, graph_state::condition{initial, flags});
    return cudaSuccess;
  });
}
}
