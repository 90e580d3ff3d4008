// A stream to record on in the legacy stream's place.
#pragma once

#include <cuda_runtime_api.h>

namespace escrow {

// While a blocking stream captures, nothing can be recorded on the legacy stream: CUDA refuses, and
// the capture is lost. But every blocking stream waits for what the legacy stream was given before,
// so that an event recorded on one that has no work of its own is done when that work is. Returns
// such a stream of `device`, always the same one, on which nobody enqueues anything but records.
// Capture-safe. Throws cuda_error, std::bad_alloc. Any thread. Source: CUDA Runtime API, "Stream
// synchronization behavior".
[[nodiscard]] cudaStream_t legacy_stream_proxy(int device);

}  // namespace escrow
