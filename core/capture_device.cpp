// Finding a capturing stream's device with events that are recorded for nothing else.
#include "escrow/core/capture_device.hpp"

#include "escrow/core/cuda_error.hpp"
#include "escrow/core/device_scope.hpp"
#include "escrow/core/event.hpp"

namespace escrow {

bool is_captured_on(stream_ref stream, int device) {
  // This handle names a stream of the current device, and another one of each other.
  if (stream.get() == cudaStreamPerThread) return current_device() == device;
  // An event of its own each time: one that two captures at once record crashes the driver
  // (measured).
  device_scope const current(device);
  event const probe;
  cudaError_t const status = cudaEventRecord(probe.get(), stream.get());
  if (status == cudaErrorInvalidResourceHandle) {
    static_cast<void>(cudaGetLastError());
    return false;
  }
  check(status, "cudaEventRecord");
  return true;
}

int device_of_capturing(stream_ref stream) {
  int const current = current_device();
  if (is_captured_on(stream, current)) return current;
  int count = 0;
  check(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
  for (int device = 0; device < count; ++device) {
    if (device != current && is_captured_on(stream, device)) return device;
  }
  throw cuda_error(cudaErrorInvalidResourceHandle, "cudaEventRecord");
}

}  // namespace escrow
