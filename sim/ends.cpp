// SPDX-License-Identifier: Apache-2.0
// The ends of a stream that captures: the nodes that its next captured work depends on.
#include "ends.hpp"

#include "edges.hpp"

#include <algorithm>

namespace escrow::sim::model {

void set_ends(stream_state& stream, frontier ends, cudaGraphEdgeData const* edges) {
  stream.ends = std::move(ends);
  stream.end_edges.clear();
  for (std::size_t i = 0; i < stream.ends.size(); ++i)
    stream.end_edges.push_back(edge_at(edges, i));
}

void expect_triggers(stream_state& stream) {
  for (std::size_t i = 0; i < stream.ends.size(); ++i) {
    if (stream.ends[i]->type != cudaGraphNodeTypeKernel) continue;
    stream.end_edges[i].from_port = cudaGraphKernelNodePortProgrammatic;
    stream.end_edges[i].type = cudaGraphDependencyTypeProgrammatic;
  }
}

void add_ends(stream_state& stream, frontier const& ends, cudaGraphEdgeData const* edges) {
  for (std::size_t i = 0; i < ends.size(); ++i) {
    cudaGraphEdgeData const edge = edge_at(edges, i);
    auto const found = std::ranges::find(stream.ends, ends[i]);
    if (found == stream.ends.end()) {
      stream.ends.push_back(ends[i]);
      stream.end_edges.push_back(edge);
      continue;
    }
    // Of two, that counts which waits for more.
    auto& there = stream.end_edges[static_cast<std::size_t>(found - stream.ends.begin())];
    if (edge.from_port < there.from_port) there = edge;
  }
}

}  // namespace escrow::sim::model
