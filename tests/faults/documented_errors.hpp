// Which errors CUDA's manual names for each call that the library makes.
#pragma once

#include <cuda_runtime_api.h>

#include <string_view>
#include <vector>

namespace escrow::test {

/// What the manual says of one call.
struct documented_call {
  std::string_view api;
  bool may_initialise;  // "may also return errors of initialisation"
  std::vector<cudaError_t> errors;
};

/// All of them.
[[nodiscard]] std::vector<documented_call> const& documented_calls();

/// The errors that the call may return. Empty if the table has no such call.
[[nodiscard]] std::vector<cudaError_t> errors_of(std::string_view api);

}  // namespace escrow::test
