// The device of a stream that is being captured.
#pragma once

#include <cstdint>

#include "escrow/core/stream.hpp"

namespace escrow {

// Whether the capturing `stream` is of `device`. Asking CUDA would kill the capture; instead an
// event of `device` that serves for nothing else is recorded, which adds no node and is refused on
// another device's stream. Where there is one device, or `device` has no context, nothing is asked;
// no context is made. A refused record replaces the thread's last error, and clears it. Throws
// cuda_error, std::bad_alloc. Any thread that may enqueue on `stream`. Source: cudaEventRecord.
[[nodiscard]] bool is_captured_on(stream_ref stream, int device);

// The device of `stream`, which captures into the graph of that id: the one that the calling thread
// found last for both, else the current one if that is it, else found by trying those
// that have a context. Throws as is_captured_on(), and cuda_error(cudaErrorInvalidResourceHandle)
// for a stream of none of them, as one of a context made with cuCtxCreate is.
// Throws cuda_error, std::bad_alloc. Any thread that may enqueue on `stream`.
[[nodiscard]] int device_of_capturing(stream_ref stream, std::uint64_t capture_id);

}  // namespace escrow
