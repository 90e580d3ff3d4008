// Error texts, and the list of sticky errors.
#include "escrow/core/error.hpp"

#include <string>
#include <typeinfo>

namespace escrow::inline v0_1 {

namespace {

std::string describe(source_location where) {
  return std::string(where.file_name()) + ":" + std::to_string(where.line()) + ": ";
}

std::string describe(cudaError_t status, char const* api, source_location where,
                     std::string_view note) {
  std::string text = describe(where) + api + " returned " + cudaGetErrorName(status) + " (" +
                     std::to_string(static_cast<int>(status)) + "): " + cudaGetErrorString(status);
  if (!note.empty()) text.append("; ").append(note);
  return text;
}

}  // namespace

cuda_error::cuda_error(cudaError_t status, char const* api, source_location where,
                       std::string_view note)
    : std::runtime_error(describe(status, api, where, note)),
      status_(status),
      api_(api),
      where_(where) {}

cuda_error::cuda_error(cuda_error const& failed, char const* call, source_location where)
    : std::runtime_error(describe(where) + call + ": " + failed.what()),
      status_(failed.status_),
      api_(failed.api_),
      where_(where) {}

void detail::throw_cuda_error(cudaError_t status, char const* api, source_location where,
                              std::string_view note) {
  static_cast<void>(cudaGetLastError());
  throw cuda_error(status, api, where, note);
}

void detail::rethrow_at(cuda_error const& handled, char const* call, source_location where) {
  if (typeid(handled) != typeid(cuda_error)) throw;  // a caller's own type, e.g. of a pool's `make`
  throw cuda_error(handled, call, where);
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
