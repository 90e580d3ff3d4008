// What a kernel node launches.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "escrow/graph/kernel.hpp"

namespace escrow {

// What: the kernel of a node, with its library if it has one, and the shape of the launch.
// Thread safety: a value.
// Memory ordering: none.
// Lifetime: keeps the library of the kernel.
// Capture: none.
// Errors: none.
struct launch_params {
  kernel launched;
  dim3 grid = {1, 1, 1};         // in blocks
  dim3 block = {1, 1, 1};        // in threads
  std::size_t shared_bytes = 0;  // of dynamic shared memory a block
};

}  // namespace escrow
