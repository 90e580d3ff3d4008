// SPDX-License-Identifier: Apache-2.0
// Frontiers, and hashes of edges.
#include "graph_walk.hpp"

#include <utility>

namespace escrow::inline v0_2 {

capture_frontier::capture_frontier(detail::capture_dependencies const& after) {
  for (std::size_t i = 0; i < after.count; ++i) {
    nodes.push_back(after.nodes[i]);
    if (is_full_dependency(after.edges[i])) std::swap(nodes[ended++], nodes.back());
  }
}

void remove_before(graph_nodes& earlier, std::span<cudaGraphNode_t const> after) {
  constexpr std::size_t nodes_max = 64;
  met_nodes met;
  for (cudaGraphNode_t const node : after) {
    std::erase(earlier, node);
    met.add(node);
  }
  for (std::size_t i = 0; i < met.size() && i < nodes_max && !earlier.empty(); ++i) {
    cudaGraphNode_t const node = met[i];
    for_each_dependency(node, [&](cudaGraphNode_t before, cudaGraphEdgeData const& edge) {
      if (ends_after(node, edge) && met.add(before)) std::erase(earlier, before);
    });
  }
}

std::uint64_t fingerprint_of(std::span<cudaGraphNode_t const> asked) {
  auto const mix = [](std::uint64_t value) {  // splitmix64
    value = (value ^ (value >> 30U)) * 0xBF58476D1CE4E5B9U;
    value = (value ^ (value >> 27U)) * 0x94D049BB133111EBU;
    return value ^ (value >> 31U);
  };
  auto const number_of = [](cudaGraphNode_t node) {
    return reinterpret_cast<std::uintptr_t>(node);
  };
  std::uint64_t sum = 0;
  for (cudaGraphNode_t const node : asked) {
    for_each_dependency(node, [&](cudaGraphNode_t earlier, cudaGraphEdgeData const& edge) {
      std::uint64_t const kind = edge.from_port * 256U + edge.type;
      sum += mix(mix(mix(number_of(node)) + number_of(earlier)) + kind);
    });
  }
  return sum;
}

}  // namespace escrow::inline v0_2
