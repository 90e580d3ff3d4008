// Checked event calls.
#include "escrow/core/event.hpp"

#include "escrow/internal/retry_cleanup.hpp"

namespace escrow::inline v0_1 {

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

}  // namespace escrow::inline v0_1
