// SPDX-License-Identifier: Apache-2.0
// Queries that the shared CUDA runtime serializes, asked of the driver: see driver.cpp.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "escrow/core/capture.hpp"
#include "escrow/version.hpp"

namespace escrow::inline v0_2 {

// As cudaStreamIsCapturing. 0.02 to 0.03 us, also on many threads, where the shared runtime takes
// 0.1 alone and 1.5 on 16 threads. A failure of the driver's leaves the caller's last error as it
// was. The runtime is asked instead: about a default stream while the thread has no current
// context, which the runtime makes; if the driver has no such function; until a capture query of
// the thread has succeeded there, and while the thread holds a graph_lifetime_lock, since it may be
// in a callback; if ESCROW_RUNTIME_CALLS is set. Any thread. detail::query_capture() and
// query_stream_id() are of this kind, too.
[[nodiscard]] cudaError_t query_is_capturing(cudaStream_t stream,
                                             cudaStreamCaptureStatus& status) noexcept;

// As capture_of(), but tells an invalidated capture, too, if `stream` is the legacy stream while a
// blocking stream captures: neither can be recorded on. Throws cuda_error.
[[nodiscard]] capture_info recordable_capture_of(cudaStream_t stream,
                                                 detail::capture_dependencies* after = nullptr);

// The node's type, by a call of the same kind. Throws cuda_error. Source: cudaGraphNodeGetType.
[[nodiscard]] cudaGraphNodeType type_of(cudaGraphNode_t node);
// As cudaGraphNodeGetDependencies, of the same kind.
[[nodiscard]] cudaError_t query_dependencies(cudaGraphNode_t node, cudaGraphNode_t* nodes,
                                             cudaGraphEdgeData* edges, std::size_t& count) noexcept;

// As cudaEventRecord, for a thread that has just enqueued work by the runtime, e.g. by
// cudaGraphLaunch: so it is in no callback, where the driver would record, and block. From then on
// the thread's queries go to the driver, too.
cudaError_t record_behind(cudaStream_t launched_on, cudaEvent_t event) noexcept;

// From now on, and until as many ends, the calling thread may run destroy callbacks.
void begin_destroy_callbacks() noexcept;
void end_destroy_callbacks() noexcept;

}  // namespace escrow::inline v0_2
