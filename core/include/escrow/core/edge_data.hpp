// What an edge of a graph waits for.
#pragma once

#include <cuda_runtime_api.h>

namespace escrow {

// Whether what is behind the edge begins after the end of what is in front of it. Behind a kernel
// an edge may wait for no more than that all its blocks have begun, or have said that others may
// (programmatic dependent launch): what is behind it runs beside that kernel (measured). Any
// thread. Source: cudaGraphKernelNodePortDefault.
[[nodiscard]] inline bool is_full_dependency(cudaGraphEdgeData const& edge) noexcept {
  return edge.from_port == cudaGraphKernelNodePortDefault;
}

}  // namespace escrow
