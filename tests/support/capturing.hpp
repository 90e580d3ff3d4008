// SPDX-License-Identifier: Apache-2.0
// Captures in tests: begun, inspected, killed and cleaned up.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <thread>
#include <utility>

#include "handles.hpp"
#include "status.hpp"

#ifdef ESCROW_TEST_RUNTIME_SIM
#include <escrow/sim/recapture.hpp>
#endif

namespace escrow::test {

inline constexpr std::array all_capture_modes{
    cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeRelaxed};

/// Sets the calling thread's capture mode and restores the old one at its end, on the same thread.
class thread_mode_scope {
 public:
  explicit thread_mode_scope(cudaStreamCaptureMode mode) : mode_{mode} {
    must(cudaThreadExchangeStreamCaptureMode(&mode_));
  }
  thread_mode_scope(thread_mode_scope const&) = delete;
  thread_mode_scope& operator=(thread_mode_scope const&) = delete;
  ~thread_mode_scope() { static_cast<void>(cudaThreadExchangeStreamCaptureMode(&mode_)); }

 private:
  cudaStreamCaptureMode mode_;
};

/// The calling thread's capture mode.
[[nodiscard]] inline cudaStreamCaptureMode thread_mode() {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  must(cudaThreadExchangeStreamCaptureMode(&mode));
  cudaStreamCaptureMode const found = mode;
  must(cudaThreadExchangeStreamCaptureMode(&mode));
  return found;
}

/// What cudaStreamGetCaptureInfo says of a stream.
struct capture_info {
  cudaError_t error = cudaSuccess;
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long id = 0;
  cudaGraph_t graph = nullptr;
};

[[nodiscard]] inline capture_info info_of(cudaStream_t stream) {
  capture_info result;
  result.error = cudaStreamGetCaptureInfo(stream, &result.status, &result.id, &result.graph,
                                          nullptr, nullptr, nullptr);
  return result;
}

/// Captures what `work` enqueues into a graph that is there, behind `after`; tells the capture's
/// id.
unsigned long long capture_to_graph(cudaStream_t stream, cudaGraph_t graph, auto work,
                                    cudaGraphNode_t const* after = nullptr, std::size_t count = 0) {
  must(cudaStreamBeginCaptureToGraph(stream, graph, after, nullptr, count,
                                     cudaStreamCaptureModeRelaxed));
  capture_info const now = info_of(stream);
  must(now.error);
  must(now.graph == graph, "the graph is the one that is captured into");
  work();
  cudaGraph_t ended = nullptr;
  must(cudaStreamEndCapture(stream, &ended));
  must(ended == graph, "the capture ends with that graph");
  return now.id;
}

/// A capture on a stream. Its end ends the capture if the test did not, destroys the graph and
/// clears the thread's last error, so that a killed capture does no harm to the next test.
class capture {
 public:
  capture(cudaStream_t stream, cudaStreamCaptureMode mode) : stream_{stream} {
    must(cudaStreamBeginCapture(stream, mode));
  }
  capture(capture const&) = delete;
  capture& operator=(capture const&) = delete;
  ~capture() {
    if (open_) static_cast<void>(end());
    static_cast<void>(cudaGetLastError());
  }

  [[nodiscard]] capture_info info() const { return info_of(stream_); }
  [[nodiscard]] bool is_active() const {
    capture_info const now = info();
    return now.error == cudaSuccess && now.status == cudaStreamCaptureStatusActive;
  }
  /// Ends the capture; afterwards graph() has what came of it.
  [[nodiscard]] cudaError_t end() {
    open_ = false;
    return cudaStreamEndCapture(stream_, graph_.out());
  }
  [[nodiscard]] owned_graph& graph() noexcept { return graph_; }

 private:
  cudaStream_t stream_;
  bool open_ = true;
  owned_graph graph_;
};

/// From its making to stop(), or to its end.
class synchronizing_thread {
 public:
  synchronizing_thread() = default;
  synchronizing_thread(synchronizing_thread&&) = delete;
  ~synchronizing_thread() { is_over_.store(true, std::memory_order_relaxed); }

  /// Call it once, before the counts are read.
  void stop() {
    is_over_.store(true, std::memory_order_relaxed);
    thread_.join();
  }
  [[nodiscard]] int failed() const { return failed_; }
  [[nodiscard]] int synchronized() const { return synchronized_; }

 private:
  std::atomic<bool> is_over_{false};
  int failed_ = 0;  // written by the thread, read after stop()
  int synchronized_ = 0;
  std::jthread thread_{[this] {
    while (!is_over_.load(std::memory_order_relaxed))
      (cudaDeviceSynchronize() == cudaSuccess ? synchronized_ : failed_)++;
  }};
};

#ifdef ESCROW_TEST_RUNTIME_SIM
/// Captures into the graph again: `enqueue(stream)`. Returns how the capture ended. By CUDA 13.3's
/// function, which the simulated runtime has with all headers.
[[nodiscard]] cudaError_t end_of_recapture(cudaStream_t stream, cudaGraph_t graph, auto&& enqueue,
                                           cudaGraphRecaptureCallbackData* callback = nullptr) {
  must(cudaStreamBeginRecaptureToGraph(stream, cudaStreamCaptureModeRelaxed, graph, callback));
  enqueue(stream);
  cudaGraph_t ended = nullptr;
  cudaError_t const status = cudaStreamEndCapture(stream, &ended);
  EXPECT_EQ(ended, status == cudaSuccess ? graph : nullptr);
  static_cast<void>(cudaGetLastError());
  return status;
}
#endif

}  // namespace escrow::test
