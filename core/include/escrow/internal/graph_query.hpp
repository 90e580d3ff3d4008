// SPDX-License-Identifier: Apache-2.0
// Graph and capture properties that CUDA reports only indirectly.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "escrow/version.hpp"

namespace escrow::inline v0_2 {

// The capture id of `graph`, which no other graph ever gets, while handles are reused. Works for
// every graph: captured, created, cloned, in a child node, the body of a conditional node, or being
// captured ("all operations other than destroy and node removal are permitted": CUDA,
// cudaStreamGetCaptureInfo). No side effects: it changes no capture and makes no call of another
// thread fail.
//
// Cost: with cuGraphGetId (CUDA 13.1 and newer), a driver call. Otherwise the graph is printed
//   (cudaGraphDebugDotPrint, to a file in memory) and the id read from the start of the text: 9 us
//   for a graph of 1 node, 47 us for 10, 1.3 ms for 1,000, 22 ms for 10,000. So store known ids.
//
// Any thread; no other thread may change the graph meanwhile. Capture-safe. Returns nothing if
// CUDA's text has another format. Throws cuda_error (cudaErrorOperatingSystem also without a free
// file descriptor or /proc), std::bad_alloc.
[[nodiscard]] std::optional<std::uint64_t> graph_id_of(cudaGraph_t graph);

// Whether the edge's successor starts after its predecessor's end. After a kernel, an edge may wait
// only until all blocks have started or triggered (programmatic dependent launch): the successor
// then runs concurrently with that kernel (measured). Any thread. Source:
// cudaGraphKernelNodePortDefault.
[[nodiscard]] inline bool is_full_dependency(cudaGraphEdgeData const& edge) noexcept {
  return edge.from_port == cudaGraphKernelNodePortDefault;
}

// Whether `node` ends after the edge's predecessor. A kernel launched by another one's trigger does
// (measured): a capture of such launches has only such edges, and later work comes after them all.
// Any thread. Throws cuda_error.
[[nodiscard]] bool ends_after(cudaGraphNode_t node, cudaGraphEdgeData const& edge);

// A graph's nodes, in CUDA's order. Throws cuda_error, std::bad_alloc.
[[nodiscard]] std::vector<cudaGraphNode_t> nodes_of(cudaGraph_t graph);

// A graph's edges: edge `i` leads from from[i] to to[i].
struct graph_edges {
  std::vector<cudaGraphNode_t> from;
  std::vector<cudaGraphNode_t> to;
  std::vector<cudaGraphEdgeData> data;
};
// Throws cuda_error, std::bad_alloc.
[[nodiscard]] graph_edges edges_of(cudaGraph_t graph);

}  // namespace escrow::inline v0_2
