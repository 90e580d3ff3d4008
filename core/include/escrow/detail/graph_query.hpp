// What CUDA tells of a graph only by detours, and of a stream that is being captured.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "escrow/core/stream.hpp"

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

// Whether the capturing `stream` is of `device`. Asking CUDA would kill the capture; instead an
// event of `device` that serves for nothing else is recorded, which adds no node and is refused on
// another device's stream. Where there is one device, or `device` has no context, nothing is asked;
// no context is made. A refused record replaces the thread's last error, and clears it. Throws
// cuda_error, std::bad_alloc. Any thread that may enqueue on `stream`. Source: cudaEventRecord.
[[nodiscard]] bool is_captured_on(stream_ref stream, int device);

// The device of `stream`, which captures into the graph of that id: one that the calling thread
// found lately for both, else the current one if that is it, else found by trying those that have a
// context. Throws as is_captured_on(), and cuda_error(cudaErrorInvalidResourceHandle) for a stream
// of none of them, as one of a context made with cuCtxCreate is.
[[nodiscard]] int device_of_capturing(stream_ref stream, std::uint64_t capture_id);

// A graph's nodes, as CUDA orders them. Throws cuda_error, std::bad_alloc.
[[nodiscard]] std::vector<cudaGraphNode_t> nodes_of(cudaGraph_t graph);

}  // namespace escrow
