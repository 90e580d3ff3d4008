// Counting nodes by type, and edges.
#include "graph_facts.hpp"

#include <vector>

#include "status.hpp"

namespace escrow::bench {
namespace {

std::string name_of(cudaGraphNodeType type) {
  switch (type) {
    case cudaGraphNodeTypeKernel:
      return "kernel";
    case cudaGraphNodeTypeHost:
      return "host";
    case cudaGraphNodeTypeEmpty:
      return "empty";
    case cudaGraphNodeTypeWaitEvent:
      return "wait_event";
    case cudaGraphNodeTypeEventRecord:
      return "event_record";
    case cudaGraphNodeTypeMemAlloc:
      return "mem_alloc";
    case cudaGraphNodeTypeMemFree:
      return "mem_free";
    default:
      return "type_" + std::to_string(static_cast<int>(type));
  }
}

}  // namespace

graph_facts facts_of(cudaGraph_t graph) {
  graph_facts facts;
  std::size_t count = 0;
  test::must(cudaGraphGetNodes(graph, nullptr, &count));
  std::vector<cudaGraphNode_t> nodes(count);
  if (count != 0) test::must(cudaGraphGetNodes(graph, nodes.data(), &count));
  for (cudaGraphNode_t const node : nodes) {
    cudaGraphNodeType type{};
    test::must(cudaGraphNodeGetType(node, &type));
    ++facts["nodes_" + name_of(type)];
  }
  std::size_t edges = 0;
  test::must(cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, &edges));
  facts["edges"] = static_cast<int>(edges);
  return facts;
}

}  // namespace escrow::bench
