// Beginning and ending a capture, with nothing left behind.
#include "escrow/graph/capture.hpp"

#include "escrow/core/capture.hpp"
#include "escrow/core/error.hpp"
#include "escrow/core/graph_lifetime_lock.hpp"
#include "escrow/detail/retry_cleanup.hpp"
#include "graph_core.hpp"

namespace escrow {

namespace {

// Not with a `graph`, whose making may fail.
void destroy(cudaGraph_t dropped) noexcept {
  if (dropped != nullptr) destroy_graph(dropped);
}

// The graph of a capture that was lost ends inside the call.
cudaError_t end_capture(cudaStream_t stream, cudaGraph_t& captured) noexcept {
  graph_lifetime_lock const turn;
  return cudaStreamEndCapture(stream, &captured);
}

}  // namespace

capture_scope::capture_scope(stream_ref stream, cudaStreamCaptureMode mode)
    : stream_(stream.get()) {
  check(cudaStreamBeginCapture(stream_, mode), "cudaStreamBeginCapture");
}

graph capture_scope::end() {
  is_open_ = false;
  std::uint64_t const id = id_of_capture();
  cudaGraph_t captured = nullptr;
  cudaError_t const status = end_capture(stream_, captured);
  if (status != cudaSuccess) {
    destroy(captured);  // there is one if the error is that of earlier work
    drop();
  }
  check(status, "cudaStreamEndCapture");
  return graph(captured, id);
}

std::uint64_t capture_scope::id_of_capture() const noexcept {
  capture_info info;
  // What fails here will fail at the end too, and is reported there.
  if (!succeeded(detail::query_capture(stream_, info))) return 0;
  return info.id;
}

capture_scope::~capture_scope() {
  if (is_open_) drop();
}

void capture_scope::drop() noexcept {
  // A capture that goes on would poison the stream. A call that failed because the capture was
  // invalidated has ended it; one that failed for another reason has not.
  static_cast<void>(cudaGetLastError());
  retry_cleanup([this] {
    cudaStreamCaptureStatus state = cudaStreamCaptureStatusNone;
    cudaError_t const status = cudaStreamIsCapturing(stream_, &state);
    // A lost device says nothing else, and what was captured has to go all the same.
    bool const may_capture =
        status == cudaSuccess ? state != cudaStreamCaptureStatusNone : is_sticky(status);
    if (!may_capture) return status;
    cudaGraph_t dropped = nullptr;
    cudaError_t const ended = end_capture(stream_, dropped);
    destroy(dropped);
    return ended;
  });
}

}  // namespace escrow
