// How a run with a failure is judged: the errors that CUDA documents, the run's name and bound, the
// counts, and the reason of an exception.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <escrow/core.hpp>
#include <escrow/pool.hpp>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "fault_runner.hpp"

namespace escrow::test {

/// What CUDA's manual says about one call.
struct documented_call {
  std::string_view api;
  bool may_initialise;  // "may also return errors of initialisation"
  std::vector<cudaError_t> errors;
};

/// The errors that a call may return. Empty if the table has no such call.
inline std::vector<cudaError_t> errors_of(std::string_view api) {
  static std::vector<documented_call> const all{
#include "documented_errors.inc"
  };
  auto const found = std::ranges::find(all, api, &documented_call::api);
  if (found == all.end()) return {};
  std::vector<cudaError_t> errors = found->errors;
  if (found->may_initialise) {
    errors.insert(errors.end(),
                  {cudaErrorInitializationError, cudaErrorInsufficientDriver, cudaErrorNoDevice});
  }
  errors.push_back(cudaErrorUnknown);  // one that the manual does not name
  // "May also return error codes from previous, asynchronous launches", which every call may.
  errors.push_back(cudaErrorIllegalAddress);
  return errors;
}

/// Ends the program with the name of a run that hangs.
class hang_alarm {
 public:
  hang_alarm(std::string const& what, unsigned seconds) {
    std::snprintf(text().data(), text().size(), "%s: hangs\n", what.c_str());
    std::signal(SIGALRM, [](int) {
      static_cast<void>(!::write(STDERR_FILENO, text().data(), std::strlen(text().data())));
      ::_exit(1);
    });
    ::alarm(seconds);
  }
  hang_alarm(hang_alarm const&) = delete;
  hang_alarm& operator=(hang_alarm const&) = delete;
  ~hang_alarm() { ::alarm(0); }

 private:
  static std::array<char, 256>& text() {
    static std::array<char, 256> kept{};
    return kept;
  }
};

inline std::string describe(operation const& it, fault const& failing) {
  std::string text = it.name;
  if (failing.call != 0) {
    text += ", call " + std::to_string(failing.call) + ", " + failing.api + ": " +
            cudaGetErrorName(failing.error);
  }
  if (failing.allocation != 0) {
    text += ", allocation " + std::to_string(failing.allocation);
    if (failing.times != 1) text += " and all that follow";
  }
  return text;
}

inline std::string describe(sim::counts const& it) {
  return text_of("streams", it.streams, "events", it.events, "graphs", it.graphs, "execs",
                 it.execs + it.execs_in_flight, "user objects", it.user_objects,
                 "device allocations", it.device_allocations, "bytes", it.device_bytes,
                 "host allocations", it.host_allocations, "captures", it.captures, "operations",
                 it.pending_ops + it.pending_callbacks, "libraries", it.libraries);
}

/// Without events and streams, of which there may be fewer.
inline sim::counts sum(sim::counts of, leftovers const& more) {
  of.graphs += more.graphs;
  of.execs += more.execs;
  of.user_objects += more.user_objects;
  of.device_allocations += more.device_allocations;
  of.device_bytes += more.device_bytes;
  of.libraries += more.libraries;
  return of;
}

/// Whether the failure explains the exception.
inline bool is_reason(fault const& failing, std::exception const& thrown) {
  auto const* const from_cuda = dynamic_cast<cuda_error const*>(&thrown);
  if (failing.allocation != 0) {
    return dynamic_cast<std::bad_alloc const*>(&thrown) != nullptr ||
           (from_cuda != nullptr && from_cuda->status() == cudaErrorMemoryAllocation);
  }
  // What CUDA says with these: the legacy stream while another captures, the stream of a device
  // that is not the event's.
  bool const is_about_a_stream = failing.error == cudaErrorStreamCaptureImplicit ||
                                 failing.error == cudaErrorInvalidResourceHandle;
  if (is_about_a_stream && dynamic_cast<usage_error const*>(&thrown) != nullptr) return true;
  // A slot that cannot be asked for whether it is done is not free.
  bool const is_of_a_question =
      failing.api == "cudaEventQuery" || failing.api == "cudaThreadExchangeStreamCaptureMode";
  if (is_of_a_question && dynamic_cast<pool_exhausted const*>(&thrown) != nullptr) return true;
  return from_cuda != nullptr && from_cuda->status() == failing.error;
}

/// Whether a statement is about failures of that call.
inline bool applies(statements const& said, std::string const& api) {
  return said.contains("*") || said.contains(api);
}

}  // namespace escrow::test
