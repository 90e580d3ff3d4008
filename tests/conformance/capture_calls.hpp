// The calls that a capture allows or that kill it, the modes and the threads they are tried in.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <string>
#include <thread>

#include "build_graph.hpp"
#include "capturing.hpp"
#include "handles.hpp"
#include "witness.hpp"

namespace escrow::test {

/// What the calls work on. Made before the capture begins, idle, and cleaned up after it has ended.
struct capture_resources {
  owned_stream capturing = make_stream();
  owned_stream other = make_stream();
  owned_stream doomed_stream = make_stream();
  owned_event event = make_event();
  owned_event doomed_event = make_event();
  owned_exec exec;
  void* memory = nullptr;
  void* made_memory = nullptr;
  void* made_pinned_memory = nullptr;
  void* made_pool_memory = nullptr;

  capture_resources() {
    owned_graph const graph = tiny_graph();
    exec = instantiate(graph);
    must(cudaEventRecord(event, other));
    must(cudaMalloc(&memory, 64));
    must(cudaStreamSynchronize(other));
  }
  capture_resources(capture_resources const&) = delete;
  capture_resources& operator=(capture_resources const&) = delete;
  ~capture_resources() {
    static_cast<void>(cudaFree(memory));
    static_cast<void>(cudaFree(made_memory));
    static_cast<void>(cudaFreeHost(made_pinned_memory));
    if (made_pool_memory != nullptr) {
      static_cast<void>(cudaFreeAsync(made_pool_memory, other));
    }
    static_cast<void>(cudaStreamSynchronize(other));
    static_cast<void>(cudaGetLastError());
  }
};

struct capture_call {
  char const* name;
  cudaError_t (*make)(capture_resources&);
};

inline void PrintTo(capture_call const& call, std::ostream* out) {
  *out << call.name;
}

/// Potentially unsafe calls: they kill a capture unless the calling thread or the capture is
/// relaxed.
inline constexpr std::array unsafe_calls{
    capture_call{"Malloc", [](capture_resources& r) { return cudaMalloc(&r.made_memory, 64); }},
    capture_call{"Free",
                 [](capture_resources& r) {
                   cudaError_t const status = cudaFree(r.memory);
                   r.memory = status == cudaSuccess ? nullptr : r.memory;
                   return status;
                 }},
    capture_call{"MallocHost",
                 [](capture_resources& r) { return cudaMallocHost(&r.made_pinned_memory, 64); }},
    capture_call{
        "MallocAsyncOnAnotherStream",
        [](capture_resources& r) { return cudaMallocAsync(&r.made_pool_memory, 64, r.other); }},
    capture_call{"EventQuery", [](capture_resources& r) { return cudaEventQuery(r.event); }},
    capture_call{"EventSynchronize",
                 [](capture_resources& r) { return cudaEventSynchronize(r.event); }},
    capture_call{"StreamQueryOfAnotherStream",
                 [](capture_resources& r) { return cudaStreamQuery(r.other); }},
    capture_call{"StreamSynchronizeOfAnotherStream",
                 [](capture_resources& r) { return cudaStreamSynchronize(r.other); }},
    // Where it fails nobody says whether the exec is still there, so nobody destroys it again.
    capture_call{"GraphExecDestroy",
                 [](capture_resources& r) { return cudaGraphExecDestroy(r.exec.release()); }},
};

inline constexpr std::array all_modes{cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal,
                                      cudaStreamCaptureModeRelaxed};

/// Which thread makes the call.
enum class caller { capturing_thread, other_thread };

inline constexpr std::array all_callers{caller::capturing_thread, caller::other_thread};

inline void PrintTo(caller which, std::ostream* out) {
  *out << (which == caller::capturing_thread ? "capturing thread" : "other thread");
}

inline std::string name_of(cudaStreamCaptureMode mode) {
  return testing::PrintToString(mode);
}

inline std::string name_of(caller which) {
  return which == caller::capturing_thread ? "FromTheCapturingThread" : "FromAnotherThread";
}

/// Runs `call` on the thread that `which` says, in that thread's own capture mode `own_mode`.
inline cudaError_t status_on(caller which, cudaStreamCaptureMode own_mode,
                             std::function<cudaError_t()> const& call) {
  cudaError_t status = cudaErrorUnknown;
  auto const run = [&] {
    thread_mode_scope const scope{own_mode};
    status = call();
    static_cast<void>(cudaGetLastError());
  };
  if (which == caller::capturing_thread) {
    run();
  } else {
    std::thread{run}.join();
  }
  return status;
}

}  // namespace escrow::test
