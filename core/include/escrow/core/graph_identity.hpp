// Which graph a handle stands for.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <optional>

namespace escrow {

// The capture id of `graph`, which is its own for good, while handles are reused: the graph is
// re-opened for capture and closed again at once, which adds nothing to it (0.13 us). Works for
// graphs that were never captured, embedded graphs of child nodes and bodies of conditional nodes.
// Nothing if the graph is being captured into. Throws cuda_error.
//
// Any thread; nobody else may use the graph meanwhile, as CUDA demands. It is a capture, of a tenth
// of a microsecond, and has what every capture has: if another thread calls cudaDeviceSynchronize
// in that very moment, that call fails, and the graph is lost (cudaErrorStreamCaptureInvalidated;
// the handle must not be used any more). So it is called only where there is no other way: for
// plain handles that a graph with references has had, and for copies of such graphs.
[[nodiscard]] std::optional<std::uint64_t> graph_id_of(cudaGraph_t graph);

}  // namespace escrow
