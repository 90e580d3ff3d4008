// Which graph a handle stands for.
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

}  // namespace escrow
