// SPDX-License-Identifier: Apache-2.0
// Error texts, and the list of sticky errors.
#include "escrow/core/error.hpp"

#include <cstdio>
#include <exception>
#include <string>
#include <string_view>
#include <type_traits>
#include <typeinfo>

namespace escrow::inline v0_2 {

namespace {

// What a status most often means, where the caller of CUDA does not know more.
std::string_view usual_note(cudaError_t status) noexcept {
  switch (status) {
    case cudaErrorNotPermitted:
      return "it was called in a CUDA callback (host function, destructor of a user object), where "
             "CUDA permits no call: leave it to a thread of the program, or retire() an owner that "
             "makes it when it is destroyed";
    case cudaErrorInitializationError:
      return "in a child of fork() CUDA does not work if the parent has used it: fork before that, "
             "or exec; else the driver could not start";
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
      return "there is no GPU, or its driver is older than the CUDA runtime; to test without a "
             "GPU, link escrow::simulated in place of the library";
    case cudaErrorInvalidResourceHandle:
      return "a stream or an event was destroyed, also one that a record_node or wait_node has, or "
             "its device was reset; or it is another device's";
    case cudaErrorStreamCaptureImplicit:
      return "a call without a stream uses the legacy one, which a capture of a blocking stream "
             "forbids: pass a stream; in `make` of a pool a non-blocking one of its own";
    case cudaErrorStreamCaptureIsolation:
      return "a capture may not wait for work that is not part of it: wait before it begins, or "
             "record the event in it";
    default:
      if (!is_sticky(status)) return {};
      return "the device is lost to this process, mostly by an earlier kernel or copy: find it by "
             "compute-sanitizer or CUDA_LAUNCH_BLOCKING=1";
  }
}

std::string describe(cudaError_t status, char const* api, source_location where,
                     std::string_view note) {
  if (note.empty()) note = usual_note(status);
  std::string text = detail::line_text({}, where, ": ") + api + " returned " +
                     cudaGetErrorName(status) + " (" + std::to_string(static_cast<int>(status)) +
                     "): " + cudaGetErrorString(status);
  if (!note.empty()) text.append("; ").append(note);
  return text;
}

bool is_same(source_location one, source_location other) noexcept {
  return one.line() == other.line() && std::string_view(one.file_name()) == other.file_name();
}

}  // namespace

cuda_error::cuda_error(cudaError_t status, char const* api, source_location where,
                       std::string_view note)
    : std::runtime_error(describe(status, api, where, note)),
      status_(status),
      api_(api),
      where_(where) {}

cuda_error::cuda_error(cuda_error const& failed, char const* call, source_location where)
    : std::runtime_error(detail::line_text({}, where, ": ") + call + ": " + failed.what()),
      status_(failed.status_),
      api_(failed.api_),
      where_(where) {}

void detail::throw_cuda_error(cudaError_t status, char const* api, source_location where,
                              std::string_view note) {
  detail::clear_last_error(status);
  throw cuda_error(status, api, where, note);
}

void detail::rethrow_at(cuda_error const& handled, char const* call, source_location where) {
  if (typeid(handled) != typeid(cuda_error)) throw;  // a caller's own type, e.g. of a pool's `make`
  if (is_same(handled.where(), where)) throw;        // a call inside of this one has named it
  throw cuda_error(handled, call, where);
}

std::string detail::line_text(std::string_view before, source_location where,
                              std::string_view after) {
  if (where.line() == 0) return {};
  return std::string(before)
      .append(where.file_name())
      .append(":")
      .append(std::to_string(where.line()))
      .append(after);
}

std::string detail::size_text(std::size_t size, std::string_view unit) {
  auto const as_given = static_cast<std::make_signed_t<std::size_t>>(size);
  return std::to_string(size) + std::string(unit) +
         (as_given < 0 ? ", which is " + std::to_string(as_given) + " converted to std::size_t"
                       : std::string());
}

void detail::terminate_thrown(char const* function) noexcept {
  static_cast<void>(
      std::fprintf(stderr, "escrow: %s threw, which it must not: catch inside of it\n", function));
  std::terminate();  // which prints the exception
}

std::string detail::text_at(source_location where, std::string_view text) {
  return line_text({}, where, ": ") + std::string(text);
}

void detail::rethrow_at(located_error const& handled, source_location where) {
  handled.throw_at(where);
  throw;  // not reached
}

void usage_error::throw_at(source_location where) const {
  detail::throw_again_at(*this, where);
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

}  // namespace escrow::inline v0_2
