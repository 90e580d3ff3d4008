// SPDX-License-Identifier: Apache-2.0
// Queries by the driver's functions.
//
// The shared runtime, with which Escrow ships, takes a lock of the process in each of its calls.
// The driver's own functions take none for queries (measured, CUDA 13.0). Their numbers of errors
// are the runtime's. ESCROW_RUNTIME_CALLS=1 goes back, for tools that intercept the runtime.
//
// In a callback the runtime refuses these calls, the driver does not (measured). CUDA's own threads
// run nothing of a program but callbacks, so the driver is asked on a thread for which the runtime
// has answered once. A thread that destroys graphs may run destroy callbacks itself: while it holds
// a graph_lifetime_lock, the runtime is asked. Not known are callbacks that a thread of the program
// runs in plain calls without that lock, e.g. cudaUserObjectRelease. That is why records and waits,
// which would block there, are left to the runtime, which refuses them, but for a record behind a
// launch, which the runtime has taken.
#include "escrow/internal/driver.hpp"

#include <cuda.h>

#include <atomic>
#include <optional>

#include "escrow/core/capture.hpp"
#include "escrow/core/error.hpp"
#include "escrow/core/stream.hpp"
#include "escrow/detail/cuda12.hpp"
#include "escrow/internal/environment.hpp"
#include "escrow/internal/last_error.hpp"
#include "escrow/internal/retry_cleanup.hpp"

namespace escrow::inline v0_2 {
namespace {

// Why this thread may be in a callback: 1 if the runtime has not answered it yet, and 2 for each
// graph_lifetime_lock that it holds. At 0 the driver is asked.
constexpr int is_unknown = 1;
constexpr int holds_lock = 2;
thread_local int may_be_in_callback = is_unknown;

cudaError_t answered_by_runtime(cudaError_t status) noexcept {
  if (status == cudaSuccess) may_be_in_callback &= ~is_unknown;
  return status;
}

// A function of the driver, with the parameters that it had in the CUDA version `since`. It is
// looked up when it is first called.
template <class... Parameters>
class driver_function {
 public:
  using pointer = CUresult(CUDAAPI*)(Parameters...);
  constexpr driver_function(char const* name, int since) noexcept : name_(name), since_(since) {}

  // The driver's answer; nothing if the runtime is to be called instead.
  std::optional<cudaError_t> operator()(Parameters... given) noexcept {
    // Relaxed: a function publishes nothing, and all threads find the same one.
    pointer function = found_.load(std::memory_order_relaxed);
    if (function == nullptr) [[unlikely]] {
      function = look_up();
      if (function == nullptr) return std::nullopt;
    }
    if (may_be_in_callback != 0) [[unlikely]]
      return std::nullopt;
    CUresult const answer = function(given...);
    if (has_no_context(answer)) [[unlikely]]
      return std::nullopt;
    return static_cast<cudaError_t>(answer);
  }

 private:
  // A default stream is that of the current context. Where the thread has none, as after a device
  // reset or when the program popped it, the runtime makes one.
  static bool has_no_context(CUresult answer) noexcept {
    return answer == CUDA_ERROR_INVALID_CONTEXT || answer == CUDA_ERROR_CONTEXT_IS_DESTROYED;
  }

  // Null if there is none, and if CUDA cannot be asked now: in one of its callbacks, or while the
  // caller has an error, which a search that fails would replace.
  pointer look_up() noexcept {
    if (is_missing_.load(std::memory_order_relaxed)) return nullptr;  // as above
    if (is_error_pending()) return nullptr;
    int version = 0;
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
    if (!succeeded(cudaDriverGetVersion(&version))) return nullptr;
    bool is_there = version >= since_ && !environment::asks_runtime_calls();
    if (is_there) {
      cudaError_t const status = cudaGetDriverEntryPointByVersion(
          name_, &found, static_cast<unsigned>(since_), cudaEnableLegacyStream, &result);
      if (!succeeded(status) && status != cudaErrorSymbolNotFound) return nullptr;
      is_there = found != nullptr;
    }
    if (!is_there) {
      is_missing_.store(true, std::memory_order_relaxed);
      return nullptr;
    }
    auto const function = reinterpret_cast<pointer>(found);
    found_.store(function, std::memory_order_relaxed);
    return function;
  }

  char const* name_;
  int since_;
  std::atomic<pointer> found_{nullptr};
  std::atomic<bool> is_missing_{false};
};

constinit driver_function<CUstream, CUstreamCaptureStatus*> stream_is_capturing(
    "cuStreamIsCapturing", 10000);
constinit driver_function<CUstream, CUstreamCaptureStatus*, cuuint64_t*, CUgraph*,
                          CUgraphNode const**, CUgraphEdgeData const**, std::size_t*>
    stream_capture_info("cuStreamGetCaptureInfo", 12030);
constinit driver_function<CUstream, unsigned long long*> stream_get_id("cuStreamGetId", 12000);
constinit driver_function<CUevent, CUstream> event_record("cuEventRecord", 2000);
constinit driver_function<CUgraphNode, CUgraphNodeType*> graph_node_get_type("cuGraphNodeGetType",
                                                                             10000);
constinit driver_function<CUgraphNode, CUgraphNode*, CUgraphEdgeData*, std::size_t*>
    graph_node_get_dependencies("cuGraphNodeGetDependencies", 12030);
constinit driver_function<CUstreamCaptureMode*> thread_exchange_mode(
    "cuThreadExchangeStreamCaptureMode", 10010);

}  // namespace

cudaError_t record_behind(cudaStream_t launched_on, cudaEvent_t event) noexcept {
  may_be_in_callback &= ~is_unknown;
  auto const answer = event_record(event, launched_on);
  return answer ? *answer : cudaEventRecord(event, launched_on);
}

void begin_destroy_callbacks() noexcept {
  may_be_in_callback += holds_lock;
}

void end_destroy_callbacks() noexcept {
  may_be_in_callback -= holds_lock;
}

cudaError_t query_is_capturing(cudaStream_t stream, cudaStreamCaptureStatus& status) noexcept {
  CUstreamCaptureStatus found = CU_STREAM_CAPTURE_STATUS_NONE;
  auto const answer = stream_is_capturing(stream, &found);
  if (!answer) return answered_by_runtime(cudaStreamIsCapturing(stream, &status));
  status = static_cast<cudaStreamCaptureStatus>(found);
  return *answer;
}

cudaError_t detail::query_stream_id(cudaStream_t stream, unsigned long long& id) noexcept {
  auto const answer = stream_get_id(stream, &id);
  return answer ? *answer : cudaStreamGetId(stream, &id);
}

cudaGraphNodeType type_of(cudaGraphNode_t node) {
  CUgraphNodeType found{};
  auto const answer = graph_node_get_type(node, &found);
  static_assert(int{CU_GRAPH_NODE_TYPE_CONDITIONAL} == int{cudaGraphNodeTypeConditional});
  static_assert(int{CU_GRAPH_NODE_TYPE_GRAPH} == int{cudaGraphNodeTypeGraph});
  auto type = static_cast<cudaGraphNodeType>(found);
  check(answer ? *answer : cudaGraphNodeGetType(node, &type), "cudaGraphNodeGetType");
  return type;
}

cudaError_t query_dependencies(cudaGraphNode_t node, cudaGraphNode_t* nodes,
                               cudaGraphEdgeData* edges, std::size_t& count) noexcept {
  static_assert(sizeof(CUgraphEdgeData) == sizeof(cudaGraphEdgeData));
  auto* const its_edges = reinterpret_cast<CUgraphEdgeData*>(edges);  // as the runtime does
  auto const answer = graph_node_get_dependencies(node, nodes, its_edges, &count);
  return answer ? *answer : cudaGraphNodeGetDependencies(node, nodes, edges, &count);
}

cudaError_t exchange_capture_mode(cudaStreamCaptureMode& mode) noexcept {
  auto its = static_cast<CUstreamCaptureMode>(mode);
  auto const answer = thread_exchange_mode(&its);
  if (!answer) return cudaThreadExchangeStreamCaptureMode(&mode);
  mode = static_cast<cudaStreamCaptureMode>(its);
  return *answer;
}

cudaError_t detail::query_capture(cudaStream_t stream, capture_info& info,
                                  capture_dependencies* after) noexcept {
  capture_dependencies ignored;
  capture_dependencies& found = after == nullptr ? ignored : *after;
  cudaGraph_t graph = nullptr;
  auto status = CU_STREAM_CAPTURE_STATUS_NONE;
  cuuint64_t id = 0;
  CUgraphEdgeData const* edges = nullptr;
  std::optional<cudaError_t> answer =
      stream_capture_info(stream, &status, &id, &graph, &found.nodes, &edges, &found.count);
  if (answer) [[likely]] {
    found.edges = reinterpret_cast<cudaGraphEdgeData const*>(edges);  // as the runtime does
  } else {
    auto told = cudaStreamCaptureStatusNone;
    unsigned long long its_id = 0;
    answer = answered_by_runtime(cudaStreamGetCaptureInfo(
        stream, &told, &its_id, &graph, &found.nodes, &found.edges, &found.count));
    status = static_cast<CUstreamCaptureStatus>(told);
    id = its_id;
  }
  if (status == CU_STREAM_CAPTURE_STATUS_NONE) [[likely]]
    return *answer;
  if (status == CU_STREAM_CAPTURE_STATUS_ACTIVE) {
    info = {.status = capture_status::active, .id = id, .graph = graph};
  } else {
    info.status = capture_status::invalidated;
  }
  return *answer;
}

capture_info usable_capture_of(char const* call, stream_ref stream,
                               detail::capture_dependencies* after) {
  capture_info info;
  cudaError_t const status = detail::query_capture(stream.get(), info, after);
  if (status != cudaSuccess || info.status == capture_status::invalidated) [[unlikely]] {
    detail::refuse_capture(call, status);
  }
  return info;
}

capture_info recordable_capture_of(cudaStream_t stream, detail::capture_dependencies* after) {
  capture_info info;
  cudaError_t const status = detail::query_capture(stream, info, after);
  if (status != cudaSuccess) [[unlikely]] {
    bool const is_unusable = status == cudaErrorStreamCaptureImplicit && stream == cudaStreamLegacy;
    if (!is_unusable) check(status, "cudaStreamGetCaptureInfo");
    detail::clear_last_error(status);
    info.status = capture_status::invalidated;
  }
  return info;
}

}  // namespace escrow::inline v0_2
