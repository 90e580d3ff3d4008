// The bodies of core: thin, checked calls of the CUDA runtime.
#include "escrow/core.hpp"

#include <string>

namespace escrow {

namespace {

std::string describe(cudaError_t status, char const* api, source_location where) {
  return std::string(where.file_name()) + ":" + std::to_string(where.line()) + ": " + api +
         " returned " + cudaGetErrorName(status) + " (" + std::to_string(static_cast<int>(status)) +
         "): " + cudaGetErrorString(status);
}

}  // namespace

cuda_error::cuda_error(cudaError_t status, char const* api, source_location where)
    : std::runtime_error(describe(status, api, where)), status_(status), api_(api), where_(where) {}

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

int device_of(stream_ref stream) {
  int device = 0;
  check(cudaStreamGetDevice(stream.get(), &device), "cudaStreamGetDevice");
  return device;
}

void detail::refuse_capture(char const* call, cudaError_t status) {
  if (status == cudaErrorStreamCaptureImplicit) {
    static_cast<void>(cudaGetLastError());
    throw usage_error(call,
                      "`stream` is the legacy stream while a blocking stream is being captured",
                      "use the capturing stream, or one made with cudaStreamNonBlocking");
  }
  check(status, "cudaStreamGetCaptureInfo");
  throw usage_error(call, "the capture of `stream` has been invalidated",
                    "end the capture with cudaStreamEndCapture and begin again");
}

void event_ref::record(stream_ref stream) const {
  check(cudaEventRecord(event_, stream.get()), "cudaEventRecord");
}

void event_ref::wait(stream_ref stream) const {
  check(cudaStreamWaitEvent(stream.get(), event_, 0), "cudaStreamWaitEvent");
}

bool event_ref::is_done() const {
  cudaError_t const status = cudaEventQuery(event_);
  if (status == cudaErrorNotReady) return false;  // not an error: see succeeded()
  check(status, "cudaEventQuery");
  return true;
}

void event_ref::sync() const {
  check(cudaEventSynchronize(event_), "cudaEventSynchronize");
}

event::event(source_location where) : event_(nullptr) {
  check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreateWithFlags",
        where);
}

event::~event() {
  if (event_ != nullptr) retry_cleanup([this] { return cudaEventDestroy(event_); });
}

relaxed_capture_scope::relaxed_capture_scope() {
  check(cudaThreadExchangeStreamCaptureMode(&previous_), "cudaThreadExchangeStreamCaptureMode");
}

relaxed_capture_scope::~relaxed_capture_scope() {
  retry_cleanup([this] { return cudaThreadExchangeStreamCaptureMode(&previous_); });
}

}  // namespace escrow
