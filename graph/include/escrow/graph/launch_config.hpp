// How a kernel is launched.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <vector>

namespace escrow {

class deleter;

// What: the shape of a launch, and who keeps its arguments.
// Thread safety: a value.
// Memory ordering: none.
// Lifetime: read by launch() only.
// Capture: none.
// Errors: none.
struct launch_config {
  dim3 grid = {1, 1, 1};         // in blocks
  dim3 block = {1, 1, 1};        // in threads
  std::size_t shared_bytes = 0;  // of dynamic shared memory a block
  // Clusters, cooperative launch and the like. Source: cudaLaunchAttribute.
  std::vector<cudaLaunchAttribute> attributes = {};
  // Who keeps the arguments' owners; null: deleter::global().
  deleter* keeper = nullptr;
};

}  // namespace escrow
