// SPDX-License-Identifier: Apache-2.0
// Stream capture.
#include "api.hpp"
#include "captures.hpp"
#include "edges.hpp"
#include "ends.hpp"
#include "graphs.hpp"
#include "streams.hpp"

#include <algorithm>
#include <utility>

using namespace escrow::sim::model;  // What this file gives C names to.

namespace {

cudaError_t status_of(stream_state const& stream, cudaStreamCaptureStatus& status) {
  if (stream.legacy && blocked_by_capture(stream)) return cudaErrorStreamCaptureImplicit;
  auto const& capture = stream.capturing;
  status = capture == nullptr      ? cudaStreamCaptureStatusNone
           : !capture->invalidated ? cudaStreamCaptureStatusActive
                                   : cudaStreamCaptureStatusInvalidated;
  return cudaSuccess;
}

bool can_all_begin_at(frontier const& from, cudaGraphEdgeData const* edges) {
  for (std::size_t i = 0; edges != nullptr && i < from.size(); ++i) {
    if (from[i] == nullptr || !can_begin_at(*from[i], edges[i])) return false;
  }
  return true;
}

template <class T, class U>
void put(T* out, U const& value) {
  if (out != nullptr) *out = value;
}

}  // namespace

extern "C" {

cudaError_t CUDARTAPI cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  return call(__func__, ordinary, [&](api_call& c) {
    std::shared_ptr<stream_state> stream;
    if (auto const error = get_stream(c, handle, stream); error != cudaSuccess) return error;
    if (status == nullptr) return cudaErrorInvalidValue;
    return status_of(*stream, *status);
  });
}

cudaError_t CUDARTAPI cudaStreamGetCaptureInfo(cudaStream_t handle, cudaStreamCaptureStatus* status,
                                               unsigned long long* id, cudaGraph_t* graph,
                                               cudaGraphNode_t const** dependencies,
                                               cudaGraphEdgeData const** edges,
                                               std::size_t* count) {
  return call("cudaStreamGetCaptureInfo", ordinary, [&](api_call& c) {
    std::shared_ptr<stream_state> stream;
    if (auto const error = get_stream(c, handle, stream); error != cudaSuccess) return error;
    if (status == nullptr) return cudaErrorInvalidValue;
    if (auto const error = status_of(*stream, *status); error != cudaSuccess) return error;
    // CUDA leaves the rest as it was unless the capture is alive.
    if (*status != cudaStreamCaptureStatusActive) return cudaSuccess;
    if (dependencies != nullptr && edges == nullptr &&
        !std::ranges::all_of(stream->end_edges, is_full))
      return cudaErrorLossyQuery;
    put(id, stream->capturing->id);
    put(graph, stream->capturing->graph->handle);
    put(dependencies, stream->ends.data());
    put(edges, stream->end_edges.data());
    put(count, stream->ends.size());
    return cudaSuccess;
  });
}

cudaError_t CUDARTAPI cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  return call(__func__, ordinary, [&](api_call& c) {
    std::shared_ptr<stream_state> stream;
    if (auto const error = get_stream(c, handle, stream); error != cudaSuccess) return error;
    return begin_capture(c, stream, mode, nullptr, {}, nullptr);
  });
}

cudaError_t CUDARTAPI cudaStreamBeginCaptureToGraph(cudaStream_t handle, cudaGraph_t graph,
                                                    cudaGraphNode_t const* dependencies,
                                                    cudaGraphEdgeData const* edges,
                                                    std::size_t count, cudaStreamCaptureMode mode) {
  return call(__func__, ordinary, [&](api_call& c) {
    std::shared_ptr<stream_state> stream;
    if (auto const error = get_stream(c, handle, stream); error != cudaSuccess) return error;
    auto const into = find_graph(graph);
    if (into == nullptr || (dependencies == nullptr && count != 0)) return cudaErrorInvalidValue;
    frontier ends(dependencies, dependencies + count);
    if (!can_all_begin_at(ends, edges)) return cudaErrorInvalidValue;
    return begin_capture(c, stream, mode, into, std::move(ends), edges);
  });
}

cudaError_t CUDARTAPI cudaStreamBeginRecaptureToGraph(cudaStream_t handle,
                                                      cudaStreamCaptureMode mode, cudaGraph_t graph,
                                                      cudaGraphRecaptureCallbackData* callback) {
  return call(__func__, ordinary, [&](api_call& c) {
    std::shared_ptr<stream_state> stream;
    if (auto const error = get_stream(c, handle, stream); error != cudaSuccess) return error;
    auto const into = find_graph(graph);
    if (into == nullptr) return cudaErrorInvalidValue;
    return begin_recapture(c, stream, mode, into, callback);
  });
}

cudaError_t CUDARTAPI cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  // Ends a capture even after the device has failed, so that nothing stays open.
  return call(__func__, frees, [&](api_call& c) {
    auto const stream = find_stream(c, handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    if (graph == nullptr) return cudaErrorInvalidValue;
    *graph = nullptr;
    return end_capture(c, *stream, graph);
  });
}

cudaError_t CUDARTAPI cudaStreamUpdateCaptureDependencies(cudaStream_t handle,
                                                          cudaGraphNode_t* dependencies,
                                                          cudaGraphEdgeData const* edges,
                                                          std::size_t count, unsigned int flags) {
  return call("cudaStreamUpdateCaptureDependencies", ordinary, [&](api_call& c) {
    std::shared_ptr<stream_state> stream;
    if (auto const error = get_stream(c, handle, stream); error != cudaSuccess) return error;
    if (stream->capturing == nullptr) return cudaErrorIllegalState;
    if (stream->capturing->invalidated) return cudaErrorStreamCaptureInvalidated;
    if (dependencies == nullptr && count != 0) return cudaErrorInvalidValue;
    frontier ends(dependencies, dependencies + count);
    if (!can_all_begin_at(ends, edges)) return cudaErrorInvalidValue;
    if (flags == cudaStreamSetCaptureDependencies) {
      set_ends(*stream, std::move(ends), edges);
    } else if (flags == cudaStreamAddCaptureDependencies) {
      add_ends(*stream, ends, edges);
    } else {
      return cudaErrorInvalidValue;
    }
    return cudaSuccess;
  });
}

cudaError_t CUDARTAPI cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  return call(__func__, outlives_fault, [&](api_call& c) {
    if (mode == nullptr || *mode < cudaStreamCaptureModeGlobal ||
        *mode > cudaStreamCaptureModeRelaxed) {
      return cudaErrorInvalidValue;
    }
    std::swap(*mode, c.me.mode);
    c.make_context();
    return cudaSuccess;
  });
}
}
