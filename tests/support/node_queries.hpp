// What tests ask CUDA about graphs that are built by hand, and about their nodes.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <escrow/internal/graph_query.hpp>
#include <escrow/nodes.hpp>
#include <utility>
#include <vector>

#include "../../graph/graph_core.hpp"
#include "status.hpp"

namespace escrow::test {

/// What one of CUDA's calls reads of a node.
template <class Answer>
[[nodiscard]] Answer ask(node const& of, cudaError_t (*get)(cudaGraphNode_t, Answer*)) {
  Answer answer{};
  must(get(of.get(), &answer));
  return answer;
}

[[nodiscard]] inline cudaGraphNodeType type_of(node const& of) {
  return ask(of, &cudaGraphNodeGetType);
}
[[nodiscard]] inline cudaKernelNodeParams kernel_params_of(node const& of) {
  return ask(of, &cudaGraphKernelNodeGetParams);
}
[[nodiscard]] inline cudaMemsetParams memset_params_of(node const& of) {
  return ask(of, &cudaGraphMemsetNodeGetParams);
}
[[nodiscard]] inline cudaMemcpy3DParms memcpy_params_of(node const& of) {
  return ask(of, &cudaGraphMemcpyNodeGetParams);
}
[[nodiscard]] inline cudaHostNodeParams host_params_of(node const& of) {
  return ask(of, &cudaGraphHostNodeGetParams);
}
[[nodiscard]] inline cudaMemAllocNodeParams alloc_params_of(node const& of) {
  return ask(of, &cudaGraphMemAllocNodeGetParams);
}
[[nodiscard]] inline cudaGraph_t embedded_in(node const& of) {
  return ask(of, &cudaGraphChildGraphNodeGetGraph);
}
[[nodiscard]] inline void* freed_by(node const& of) {
  void* address = nullptr;
  must(cudaGraphMemFreeNodeGetParams(of.get(), &address));
  return address;
}
/// Of a node that records, or waits.
[[nodiscard]] inline cudaEvent_t event_of(node const& of) {
  bool const records = type_of(of) == cudaGraphNodeTypeEventRecord;
  return ask(of, records ? &cudaGraphEventRecordNodeGetEvent : &cudaGraphEventWaitNodeGetEvent);
}

[[nodiscard]] inline std::vector<node> as_nodes(graph_builder_ref const& at,
                                                std::vector<cudaGraphNode_t> const& handles) {
  std::vector<node> found;
  for (cudaGraphNode_t const each : handles) found.push_back(at.node_of(each));
  return found;
}

template <class List>
[[nodiscard]] std::vector<node> neighbours_of(node const& of, List list) {
  std::size_t count = 0;
  must(list(of.get(), nullptr, nullptr, &count));
  std::vector<cudaGraphNode_t> found(count);
  std::vector<cudaGraphEdgeData> data(count);
  if (count != 0) {
    must(list(of.get(), found.data(), data.data(), &count));
  }
  return as_nodes(of, found);
}
[[nodiscard]] inline std::vector<node> predecessors_of(node const& of) {
  return neighbours_of(of, [](auto... out) { return cudaGraphNodeGetDependencies(out...); });
}
[[nodiscard]] inline std::vector<node> successors_of(node const& of) {
  return neighbours_of(of, [](auto... out) { return cudaGraphNodeGetDependentNodes(out...); });
}

using edge_list = std::vector<std::pair<node, node>>;

[[nodiscard]] inline edge_list edges_at(graph_builder_ref const& at, cudaGraph_t graph) {
  edge_list edges;
  for (node const& from : as_nodes(at, nodes_of(graph))) {
    for (node const& to : successors_of(from)) edges.emplace_back(from, to);
  }
  return edges;
}

/// Of a graph, without asking it for its handle, which would put on it what its nodes keep.
[[nodiscard]] inline std::vector<node> nodes_in(graph const& of) {
  return as_nodes(of, nodes_of(of.core()->native()));
}
[[nodiscard]] inline edge_list edges_in(graph const& of) {
  return edges_at(of, of.core()->native());
}
[[nodiscard]] inline std::vector<node> nodes_in(body_graph const& of) {
  return as_nodes(of, nodes_of(of.get()));
}
[[nodiscard]] inline edge_list edges_in(body_graph const& of) {
  return edges_at(of, of.get());
}

}  // namespace escrow::test
