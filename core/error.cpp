// Error texts, and the list of sticky errors.
#include "escrow/core/error.hpp"

#include <string>

namespace escrow::inline v0_1 {

namespace {

std::string describe(cudaError_t status, char const* api, source_location where) {
  return std::string(where.file_name()) + ":" + std::to_string(where.line()) + ": " + api +
         " returned " + cudaGetErrorName(status) + " (" + std::to_string(static_cast<int>(status)) +
         "): " + cudaGetErrorString(status);
}

}  // namespace

cuda_error::cuda_error(cudaError_t status, char const* api, source_location where,
                       std::string const& more)
    : std::runtime_error(describe(status, api, where) + more),
      status_(status),
      api_(api),
      where_(where) {}

void detail::throw_cuda_error(cudaError_t status, char const* api, source_location where) {
  static_cast<void>(cudaGetLastError());
  throw cuda_error(status, api, where);
}

bool is_sticky(cudaError_t status) noexcept {
  switch (status) {
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorLaunchFailure:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContextIsDestroyed:
    case cudaErrorMpsClientTerminated:
    case cudaErrorContained:
    case cudaErrorTensorMemoryLeak:
    case cudaErrorExternalDevice:
      return true;
    default:
      return false;
  }
}

}  // namespace escrow::inline v0_1
