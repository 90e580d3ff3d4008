// The table of documented errors, and what holds for all calls.
#include "documented_errors.hpp"

#include <algorithm>

namespace escrow::test {

std::vector<documented_call> const& documented_calls() {
  static std::vector<documented_call> const all{
#include "documented_errors.inc"
  };
  return all;
}

std::vector<cudaError_t> errors_of(std::string_view api) {
  auto const found = std::ranges::find(documented_calls(), api, &documented_call::api);
  if (found == documented_calls().end()) return {};
  std::vector<cudaError_t> errors = found->errors;
  if (found->may_initialise) {
    errors.insert(errors.end(),
                  {cudaErrorInitializationError, cudaErrorInsufficientDriver, cudaErrorNoDevice});
  }
  // "May also return error codes from previous, asynchronous launches", which every call may.
  errors.push_back(cudaErrorIllegalAddress);
  return errors;
}

}  // namespace escrow::test
