// SPDX-License-Identifier: Apache-2.0
// Errors for unusable streams, and the Relaxed capture mode.
#include "escrow/core/capture.hpp"

#include "escrow/internal/environment.hpp"
#include "escrow/internal/retry_cleanup.hpp"

namespace escrow::inline v0_2 {

void detail::refuse_capture(char const* call, cudaError_t status) {
  if (status == cudaErrorStreamCaptureImplicit) {
    detail::clear_last_error(status);
    throw usage_error(call,
                      "`stream` is the legacy stream while a blocking stream is being captured",
                      "use the capturing stream, or one made with cudaStreamNonBlocking");
  }
  if (status == cudaErrorNotPermitted) {
    detail::clear_last_error(status);
    throw usage_error(
        call, "`stream` was given in a CUDA callback, where CUDA permits no call",
        "claim and release outside of the callback; to end an object there, hand it to "
        "deleter::retire(owner), without a stream");
  }
  check(status, "cudaStreamGetCaptureInfo");
  throw usage_error(call, "the capture of `stream` has been invalidated",
                    "end the capture, leave out the call that invalidated it, and capture again; " +
                        environment::last_invalidation());
}

relaxed_capture_scope::relaxed_capture_scope(source_location where) {
  check(exchange_capture_mode(previous_), "cudaThreadExchangeStreamCaptureMode", where);
}

relaxed_capture_scope::~relaxed_capture_scope() {
  retry_cleanup([this] { return exchange_capture_mode(previous_); });
}

}  // namespace escrow::inline v0_2
