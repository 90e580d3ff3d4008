// SPDX-License-Identifier: Apache-2.0
// A graph's picture: cudaGraphDebugDotPrint.
#include "api.hpp"
#include "graphs.hpp"

#include <fstream>
#include <string>

using namespace escrow::sim::model;  // What this file gives C names to.

namespace {

char const* name_of(cudaGraphNodeType type) {
  switch (type) {
    case cudaGraphNodeTypeKernel:
      return "KERNEL";
    case cudaGraphNodeTypeMemcpy:
      return "MEMCPY";
    case cudaGraphNodeTypeMemset:
      return "MEMSET";
    case cudaGraphNodeTypeHost:
      return "HOST";
    case cudaGraphNodeTypeGraph:
      return "GRAPH";
    case cudaGraphNodeTypeEmpty:
      return "EMPTY";
    case cudaGraphNodeTypeWaitEvent:
      return "EVENT_WAIT";
    case cudaGraphNodeTypeEventRecord:
      return "EVENT_RECORD";
    case cudaGraphNodeTypeMemAlloc:
      return "MEM_ALLOC";
    case cudaGraphNodeTypeMemFree:
      return "MEM_FREE";
    case cudaGraphNodeTypeConditional:
      return "CONDITIONAL";
    default:
      return "OTHER";
  }
}

std::string id_of(CUgraphNode_st const& node) {
  return "\"graph_" + std::to_string(node.graph->id) + "_node_" + std::to_string(node.position) +
         '"';
}

// A head with the graph's id, as CUDA has it; then a line for each node, one for each edge, and a
// cluster for each graph inside.
void print(std::ostream& out, graph_state const& graph) {
  out << "subgraph cluster_" << graph.id << " {\nlabel=\"graph_" << graph.id
      << "\" graph[style=\"dashed\"];\n";
  for (auto const& node : graph.nodes) {
    out << id_of(*node) << " [label=\"" << node->position << ' ' << name_of(node->type);
    if (auto const* const kernel = std::get_if<kernel_work>(&node->what))
      out << ' ' << kernel->code->name;
    out << "\"];\n";
    for (auto const& inner : inner_graphs(*node)) print(out, *inner);
  }
  for (auto const& node : graph.nodes) {
    for (auto const* const after : node->after)
      out << id_of(*node) << " -> " << id_of(*after) << ";\n";
  }
  out << "}\n";
}

}  // namespace

extern "C" {

cudaError_t CUDARTAPI cudaGraphDebugDotPrint(cudaGraph_t handle, char const* path, unsigned int) {
  return call(__func__, outlives_fault, [&](api_call&) {
    auto const graph = find_graph(handle);
    if (graph == nullptr || path == nullptr) return cudaErrorInvalidValue;
    std::ofstream out(path);
    out << "digraph dot {\n";
    print(out, *graph);
    out << "}\n";
    out.close();
    return out ? cudaSuccess : cudaErrorOperatingSystem;
  });
}
}
