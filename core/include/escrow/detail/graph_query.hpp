// What a graph is identified by, and what its edges wait for.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <optional>

namespace escrow {

// The capture id of `graph`, which no other graph ever has, while handles are reused. Works for
// every graph: captured, created, cloned, embedded in a child node, the body of a conditional node,
// or being captured into ("all operations other than destroy and node removal are permitted": CUDA,
// cudaStreamGetCaptureInfo). Has no side effects: no capture, also on this thread, is changed, and
// no other thread's call fails.
//
// Cost: the driver is asked where it has cuGraphGetId (CUDA 13.1 and newer). Else the graph is
// printed (cudaGraphDebugDotPrint, to a file in memory), and its id read from the head of the text:
// 9 us for a graph of one node, 47 us for 10, 1.3 ms for 1,000, 22 ms for 10,000 nodes. So remember
// an id that is known.
//
// Any thread; no other may change the graph meanwhile. Capture-safe. Returns nothing if CUDA's text
// is not as expected. Throws cuda_error (cudaErrorOperatingSystem also if there is no file
// descriptor left, or no /proc), std::bad_alloc.
[[nodiscard]] std::optional<std::uint64_t> graph_id_of(cudaGraph_t graph);

// Whether what is behind the edge begins after the end of what is in front of it. Behind a kernel
// an edge may wait for no more than that all its blocks have begun, or have said that others may
// (programmatic dependent launch): what is behind it runs beside that kernel (measured). Any
// thread. Source: cudaGraphKernelNodePortDefault.
[[nodiscard]] inline bool is_full_dependency(cudaGraphEdgeData const& edge) noexcept {
  return edge.from_port == cudaGraphKernelNodePortDefault;
}

}  // namespace escrow
