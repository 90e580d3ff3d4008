// Asking a graph for its id, on streams that are kept for nothing else.
#include "escrow/core/graph_identity.hpp"

#include <cstddef>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "escrow/core/capture_info.hpp"
#include "escrow/core/cuda_error.hpp"
#include "escrow/core/device_scope.hpp"
#include "escrow/core/graph_lifetime_lock.hpp"
#include "escrow/core/relaxed_capture_scope.hpp"
#include "escrow/core/retry_cleanup.hpp"

namespace escrow {

namespace {

// A non-blocking stream of the current device on which nothing else ever happens.
class probe_stream {
 public:
  probe_stream() {
    {
      std::lock_guard const lock(idle().mutex);
      for (auto& each : idle().streams) {
        if (each.first != device_) continue;
        std::swap(each, idle().streams.back());
        stream_ = idle().streams.back().second;
        idle().streams.pop_back();
        return;
      }
      idle().streams.reserve(++idle().made);  // room for all, so that the end allocates nothing
    }
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  }
  probe_stream(probe_stream&&) = delete;
  ~probe_stream() {
    // Destroying one that may be capturing would destroy the graph too: it is leaked, on purpose.
    if (is_suspect_) return;
    std::lock_guard const lock(idle().mutex);
    idle().streams.emplace_back(device_, stream_);
  }

  [[nodiscard]] cudaStream_t get() const noexcept { return stream_; }
  // It may be capturing still.
  void suspect() noexcept { is_suspect_ = true; }

 private:
  struct idle_streams {
    std::mutex mutex;  // guards `streams`; held across no call of CUDA
    std::vector<std::pair<int, cudaStream_t>> streams;  // with their devices
    std::size_t made = 0;
  };
  static idle_streams& idle() noexcept {
    // Never destroyed: destroying streams at exit may fail.
    alignas(idle_streams) static std::byte storage[sizeof(idle_streams)];
    static idle_streams& kept = *::new (static_cast<void*>(storage)) idle_streams;
    return kept;
  }

  int device_ = current_device();
  cudaStream_t stream_ = nullptr;
  bool is_suspect_ = false;
};

}  // namespace

std::optional<std::uint64_t> graph_id_of(cudaGraph_t graph) {
  relaxed_capture_scope const relaxed;
  probe_stream probe;
  cudaError_t const begun = cudaStreamBeginCaptureToGraph(probe.get(), graph, nullptr, nullptr, 0,
                                                          cudaStreamCaptureModeRelaxed);
  if (begun == cudaErrorIllegalState) {
    static_cast<void>(cudaGetLastError());
    return std::nullopt;
  }
  check(begun, "cudaStreamBeginCaptureToGraph");
  capture_info info;
  cudaError_t const asked = detail::query_capture(probe.get(), info);
  cudaGraph_t same = nullptr;
  cudaError_t ended = cudaSuccess;
  bool const is_closed = retry_cleanup([&] {
    graph_lifetime_lock const turn;  // if the capture was lost, this destroys the graph
    cudaError_t const status = cudaStreamEndCapture(probe.get(), &same);
    if (ended == cudaSuccess) ended = status;
    return status;
  });
  if (!is_closed && ended != cudaErrorStreamCaptureInvalidated) probe.suspect();
  check(asked, "cudaStreamGetCaptureInfo");
  if (!is_closed) throw cuda_error(ended, "cudaStreamEndCapture");
  return info.id;
}

}  // namespace escrow
