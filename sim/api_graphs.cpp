// SPDX-License-Identifier: Apache-2.0
// Graphs: making, copying, destroying, and looking at them.
#include "api.hpp"
#include "edges.hpp"
#include "families.hpp"
#include "graph_memory.hpp"
#include "graphs.hpp"
#include "nodes.hpp"

#include <algorithm>

using namespace escrow::sim::model;  // What this file gives C names to.

namespace {

using edge_list = std::vector<cudaGraphEdgeData>;

// CUDA's way to return a list: the count alone if there is no array; otherwise as many as fit, the
// rest set to null.
cudaError_t put_list(std::vector<cudaGraphNode_t> const& list, cudaGraphNode_t* out,
                     std::size_t* count) {
  if (count == nullptr) return cudaErrorInvalidValue;
  if (out == nullptr) {
    *count = list.size();
    return cudaSuccess;
  }
  for (std::size_t i = 0; i < *count; ++i) out[i] = i < list.size() ? list[i] : nullptr;
  *count = std::min(*count, list.size());
  return cudaSuccess;
}

// The same with an edge to or from each.
cudaError_t put_list(std::vector<cudaGraphNode_t> const& list, edge_list const& edges,
                     cudaGraphNode_t* out, cudaGraphEdgeData* edges_out, std::size_t* count) {
  if (count == nullptr || (edges_out != nullptr && out == nullptr)) return cudaErrorInvalidValue;
  if (out != nullptr && edges_out == nullptr && !std::ranges::all_of(edges, is_full))
    return cudaErrorLossyQuery;
  for (std::size_t i = 0; edges_out != nullptr && i < *count; ++i)
    edges_out[i] = i < edges.size() ? edges[i] : cudaGraphEdgeData{};
  return put_list(list, out, count);
}

template <class Wanted>
cudaError_t put_nodes(char const* name, cudaGraph_t handle, cudaGraphNode_t* out,
                      std::size_t* count, Wanted wanted) {
  return call(name, outlives_fault, [&](api_call&) {
    auto const graph = find_graph(handle);
    if (graph == nullptr) return cudaErrorInvalidValue;
    std::vector<cudaGraphNode_t> list;
    for (auto const& node : graph->nodes) {
      if (wanted(*node)) list.push_back(node.get());
    }
    return put_list(list, out, count);
  });
}

}  // namespace

extern "C" {

cudaError_t CUDARTAPI cudaGraphCreate(cudaGraph_t* out, unsigned int flags) {
  return call(__func__, outlives_fault, [&](api_call&) {
    if (out == nullptr || flags != 0) return cudaErrorInvalidValue;
    *out = make_graph()->handle;
    return cudaSuccess;
  });
}

cudaError_t CUDARTAPI cudaGraphDestroy(cudaGraph_t handle) {
  return call(__func__, outlives_fault, [&](api_call& c) {
    auto const graph = find_graph(handle);
    // An embedded graph belongs to its node, and an open one to its capture.
    if (graph == nullptr || graph->embedded) return cudaErrorInvalidValue;
    if (graph->open) return cudaErrorIllegalState;
    enter_families(c, *graph);
    dismantle(graph, c.reclaimed);
    return cudaSuccess;
  });
}

cudaError_t CUDARTAPI cudaGraphClone(cudaGraph_t* out, cudaGraph_t original) {
  return call(__func__, outlives_fault, [&](api_call& c) {
    auto const graph = find_graph(original);
    if (out == nullptr || graph == nullptr) return cudaErrorInvalidValue;
    if (has_conditionals(*graph) || has_memory_nodes(*graph)) return cudaErrorNotSupported;
    auto const copy = clone(*graph, true);
    *out = copy->handle;
    enter_links(c, *copy);
    return cudaSuccess;
  });
}

cudaError_t CUDARTAPI cudaGraphNodeFindInClone(cudaGraphNode_t* out, cudaGraphNode_t original,
                                               cudaGraph_t clone) {
  return call(__func__, outlives_fault, [&](api_call& c) {
    auto const graph = find_graph(clone);
    if (out == nullptr || original == nullptr || graph == nullptr) return cudaErrorInvalidValue;
    enter_links(c, *graph);
    auto const found =
        std::ranges::find(graph->nodes, original, [](auto const& node) { return node->origin; });
    if (found == graph->nodes.end()) return cudaErrorInvalidValue;
    *out = found->get();
    return cudaSuccess;
  });
}

cudaError_t CUDARTAPI cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* out,
                                        std::size_t* count) {
  return put_nodes(__func__, graph, out, count, [](auto const&) { return true; });
}

cudaError_t CUDARTAPI cudaGraphGetRootNodes(cudaGraph_t graph, cudaGraphNode_t* out,
                                            std::size_t* count) {
  return put_nodes(__func__, graph, out, count,
                   [](auto const& node) { return node.before.empty(); });
}

cudaError_t CUDARTAPI cudaGraphGetEdges(cudaGraph_t handle, cudaGraphNode_t* from,
                                        cudaGraphNode_t* to, cudaGraphEdgeData* edges,
                                        std::size_t* count) {
  return call("cudaGraphGetEdges", outlives_fault, [&](api_call&) {
    auto const graph = find_graph(handle);
    if (graph == nullptr || count == nullptr || (from == nullptr) != (to == nullptr))
      return cudaErrorInvalidValue;
    std::vector<cudaGraphNode_t> froms;
    std::vector<cudaGraphNode_t> tos;
    edge_list its;
    for (auto const& node : graph->nodes) {
      for (auto* const after : node->after) {
        froms.push_back(node.get());
        tos.push_back(after);
        its.push_back(edge_from(*node, *after));
      }
    }
    auto room = *count;
    if (auto const error = put_list(tos, its, to, edges, &room); error != cudaSuccess) return error;
    return put_list(froms, from, count);
  });
}

cudaError_t CUDARTAPI cudaGraphNodeGetDependencies(cudaGraphNode_t node, cudaGraphNode_t* out,
                                                   cudaGraphEdgeData* edges, std::size_t* count) {
  return call("cudaGraphNodeGetDependencies", outlives_fault, [&](api_call&) {
    if (node == nullptr) return cudaErrorInvalidValue;
    return put_list(node->before, node->before_edges, out, edges, count);
  });
}

cudaError_t CUDARTAPI cudaGraphNodeGetDependentNodes(cudaGraphNode_t node, cudaGraphNode_t* out,
                                                     cudaGraphEdgeData* edges, std::size_t* count) {
  return call("cudaGraphNodeGetDependentNodes", outlives_fault, [&](api_call&) {
    if (node == nullptr) return cudaErrorInvalidValue;
    edge_list its;
    for (auto const* const after : node->after) its.push_back(edge_from(*node, *after));
    return put_list(node->after, its, out, edges, count);
  });
}

cudaError_t CUDARTAPI cudaGraphNodeGetType(cudaGraphNode_t node, cudaGraphNodeType* type) {
  return call(__func__, outlives_fault, [&](api_call& c) {
    refuse_destroyed(c.name, node);
    if (node == nullptr || type == nullptr) return cudaErrorInvalidValue;
    *type = node->type;
    return cudaSuccess;
  });
}

cudaError_t CUDARTAPI cudaGraphChildGraphNodeGetGraph(cudaGraphNode_t node, cudaGraph_t* out) {
  return call(__func__, outlives_fault, [&](api_call&) {
    auto const* const child = node == nullptr ? nullptr : std::get_if<child_work>(&node->what);
    if (child == nullptr || out == nullptr) return cudaErrorInvalidValue;
    *out = child->graph->handle;
    return cudaSuccess;
  });
}

cudaError_t CUDARTAPI cudaGraphDestroyNode(cudaGraphNode_t node) {
  return call(__func__, outlives_fault, [&](api_call& c) {
    refuse_destroyed(c.name, node);
    if (node == nullptr) return cudaErrorInvalidValue;
    if (has_memory_nodes(*node->graph)) return cudaErrorNotSupported;
    enter_own(c, *node->graph);
    for (auto const& inner : inner_graphs(*node)) enter_families(c, *inner);
    remove_node(*node, c.reclaimed);
    return cudaSuccess;
  });
}
}
