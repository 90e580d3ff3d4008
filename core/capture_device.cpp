// Finding a capturing stream's device with events that are recorded for nothing else.
#include "escrow/detail/capture_device.hpp"

#include <utility>

#include "escrow/core/error.hpp"
#include "escrow/detail/device.hpp"
#include "escrow/detail/ready_event.hpp"

namespace escrow {

namespace {

bool is_only_device() {
  int count = 0;
  check(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
  return count == 1;
}

// Whether an event of `device`, which has a context, can be recorded on `stream`.
bool takes_event_of(int device, stream_ref stream) {
  // Used by no other thread meanwhile: two captures that record one at the same time crash the
  // driver (measured). One after the other they may, also while both go on (measured).
  event probe = event_cache::take(device, event_use::captured);
  cudaError_t const status = cudaEventRecord(probe.get(), stream.get());
  if (status != cudaErrorInvalidResourceHandle) check(status, "cudaEventRecord");
  event_cache::put(device, std::move(probe), event_use::captured);
  return succeeded(status);
}

}  // namespace

bool is_captured_on(stream_ref stream, int device) {
  // This handle names a stream of the current device, and another one of each other.
  if (stream.get() == cudaStreamPerThread) return current_device() == device;
  return is_only_device() || (is_in_use(device) && takes_event_of(device, stream));
}

namespace {

int find_device(stream_ref stream) {
  int const current = current_device();
  if (is_captured_on(stream, current)) return current;
  int count = 0;
  check(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
  for (int device = 0; device < count; ++device) {
    if (device != current && is_captured_on(stream, device)) return device;
  }
  throw cuda_error(cudaErrorInvalidResourceHandle, "cudaEventRecord");
}

}  // namespace

int device_of_capturing(stream_ref stream, std::uint64_t capture_id) {
  // What the calling thread found last: ids are never reused, and a stream keeps its device.
  thread_local struct {
    std::uint64_t capture_id = 0;
    cudaStream_t stream = nullptr;
    int device = 0;
  } last;
  bool const is_ambiguous = stream.get() == cudaStreamPerThread;
  if (!is_ambiguous && last.capture_id == capture_id && last.stream == stream.get()) {
    return last.device;
  }
  last = {.capture_id = capture_id, .stream = stream.get(), .device = find_device(stream)};
  return last.device;
}

}  // namespace escrow
