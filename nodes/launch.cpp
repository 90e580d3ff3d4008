// The launch itself.
#include "escrow/nodes/launch.hpp"

#include <cuda_runtime_api.h>

#include "escrow/core/error.hpp"

namespace escrow {

void detail::launch_values(stream_ref stream, kernel const& launched, launch_config const& config,
                           void** values) {
  if (launched.get() == nullptr) {
    throw usage_error("launch", "the kernel is null: it was moved from",
                      "copy it, or find it again");
  }
  // CUDA takes the attributes through a pointer to what it does not change.
  auto* const attributes = const_cast<cudaLaunchAttribute*>(config.attributes.data());
  cudaLaunchConfig_t const shape{
      .gridDim = config.grid,
      .blockDim = config.block,
      .dynamicSmemBytes = config.shared_bytes,
      .stream = stream.get(),
      .attrs = attributes,
      .numAttrs = static_cast<unsigned>(config.attributes.size()),
  };
  check(cudaLaunchKernelExC(&shape, launched.get(), values), "cudaLaunchKernelExC");
}

}  // namespace escrow
