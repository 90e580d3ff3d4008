// Which calls a capture allows, and which kill it and when (cuda-facts.md, section 4).
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <utility>

#include "build_graph.hpp"
#include "capturing.hpp"
#include "graph_nodes.hpp"
#include "witness.hpp"

namespace escrow::test {
namespace {

constexpr auto global = cudaStreamCaptureModeGlobal;
constexpr auto local = cudaStreamCaptureModeThreadLocal;
constexpr auto relaxed = cudaStreamCaptureModeRelaxed;
constexpr cudaStreamCaptureMode all_modes[] = {global, local, relaxed};

// What the calls work on. Made before the capture begins, idle, and freed after it has ended.
struct resources {
  owned_stream capturing = make_stream();
  owned_stream other = make_stream();
  owned_stream doomed_stream = make_stream();
  owned_event event = make_event();
  owned_event doomed_event = make_event();
  owned_exec exec = instantiate(tiny_graph());
  void* memory = nullptr;
  void* made_memory = nullptr;
  void* made_pinned_memory = nullptr;
  void* made_pool_memory = nullptr;

  resources() {
    must(cudaEventRecord(event, other));
    must(cudaMalloc(&memory, 64));
    must(cudaStreamSynchronize(other));
  }
  resources(resources const&) = delete;
  resources& operator=(resources const&) = delete;
  ~resources() {
    static_cast<void>(cudaFree(memory));
    static_cast<void>(cudaFree(made_memory));
    static_cast<void>(cudaFreeHost(made_pinned_memory));
    if (made_pool_memory != nullptr) static_cast<void>(cudaFreeAsync(made_pool_memory, other));
    static_cast<void>(cudaStreamSynchronize(other));
    static_cast<void>(cudaGetLastError());
  }
};

struct named_call {
  char const* name;
  cudaError_t (*make)(resources&);
  cudaError_t expected = cudaErrorStreamCaptureUnsupported;
};

// Calls that a capture of any mode allows.
constexpr named_call legal_calls[] = {
    {"EventCreate", [](resources&) { return cudaEventDestroy(make_event().release()); }},
    {"EventDestroy", [](resources& r) { return cudaEventDestroy(r.doomed_event.release()); }},
    {"EventRecordOnAnotherStream", [](resources& r) { return cudaEventRecord(r.event, r.other); }},
    {"StreamCreate", [](resources&) { return cudaStreamDestroy(make_stream().release()); }},
    {"StreamDestroyOfAnotherStream",
     [](resources& r) { return cudaStreamDestroy(r.doomed_stream.release()); }},
    {"UserObjectCreate", [](resources&) { return cudaUserObjectRelease(witness{}.make(), 1); }},
    {"GraphRetainUserObject",
     [](resources& r) {
       return cudaGraphRetainUserObject(info_of(r.capturing).graph, witness{}.make(), 1,
                                        cudaGraphUserObjectMove);
     }},
    {"StreamGetCaptureInfo", [](resources& r) { return info_of(r.capturing).error; }},
    {"ExternalWaitEvent",
     [](resources& r) { return cudaStreamWaitEvent(r.capturing, r.event, cudaEventWaitExternal); }},
    {"ExternalEventRecord",
     [](resources& r) {
       return cudaEventRecordWithFlags(r.event, r.capturing, cudaEventRecordExternal);
     }},
    {"LaunchHostFunc",
     [](resources& r) {
       return cudaLaunchHostFunc(
           r.capturing, [](void*) {}, nullptr);
     }},
};

// Potentially unsafe calls: they kill a capture unless the calling thread or the capture is
// relaxed.
constexpr named_call unsafe_calls[] = {
    {"Malloc", [](resources& r) { return cudaMalloc(&r.made_memory, 64); }},
    {"Free",
     [](resources& r) {
       cudaError_t const status = cudaFree(r.memory);
       r.memory = status == cudaSuccess ? nullptr : r.memory;
       return status;
     }},
    {"MallocHost", [](resources& r) { return cudaMallocHost(&r.made_pinned_memory, 64); }},
    {"MallocAsyncOnAnotherStream",
     [](resources& r) { return cudaMallocAsync(&r.made_pool_memory, 64, r.other); }},
    {"EventQuery", [](resources& r) { return cudaEventQuery(r.event); }},
    {"EventSynchronize", [](resources& r) { return cudaEventSynchronize(r.event); }},
    {"StreamQueryOfAnotherStream", [](resources& r) { return cudaStreamQuery(r.other); }},
    {"StreamSynchronizeOfAnotherStream",
     [](resources& r) { return cudaStreamSynchronize(r.other); }},
    // Where it fails, it is not known whether the exec still exists, so it is not destroyed again.
    {"GraphExecDestroy", [](resources& r) { return cudaGraphExecDestroy(r.exec.release()); }},
};

// Calls that kill every capture, also from a relaxed thread.
constexpr named_call deadly_calls[] = {
    {"DeviceSynchronize", [](resources&) { return cudaDeviceSynchronize(); }},
    {"StreamQuery", [](resources& r) { return cudaStreamQuery(r.capturing); }},
    {"StreamGetId",
     [](resources& r) {
       unsigned long long id = 0;
       return cudaStreamGetId(r.capturing, &id);
     }},
    {"StreamGetDevice",
     [](resources& r) {
       int device = 0;
       return cudaStreamGetDevice(r.capturing, &device);
     }},
    {"StreamGetFlags",
     [](resources& r) {
       unsigned flags = 0;
       return cudaStreamGetFlags(r.capturing, &flags);
     }},
    {"QueryOfAnEventRecordedInTheCapture",
     [](resources& r) {
       must(cudaEventRecord(r.event, r.capturing));
       return cudaEventQuery(r.event);
     },
     cudaErrorCapturedEvent},
    {"WaitForAnEagerlyRecordedEvent",
     [](resources& r) { return cudaStreamWaitEvent(r.capturing, r.event, 0); },
     cudaErrorStreamCaptureIsolation},
};

enum class caller { capturing_thread, other_thread };
constexpr auto here = caller::capturing_thread;
constexpr auto there = caller::other_thread;

// A capture, and a call's thread with that thread's own mode.
struct situation {
  cudaStreamCaptureMode mode;
  caller from;
  cudaStreamCaptureMode own_mode;
};

cudaError_t status_of(named_call const& call, situation const& where, resources& all) {
  cudaError_t result = cudaErrorUnknown;
  auto const make = [&] {
    thread_mode_scope const scope{where.own_mode};
    result = tried(call.make(all));
  };
  if (where.from == here) {
    make();
  } else {
    std::thread{make}.join();
  }
  return result;
}

// Captures a kernel and makes the call, which kills the capture if it is to fail. Otherwise
// captures another kernel and returns the graph.
owned_graph graph_after(named_call const& call, situation const& where, cudaError_t expected,
                        resources& all) {
  testing::ScopedTrace const trace{
      __FILE__, __LINE__,
      std::string{call.name} + (where.from == here ? " here in " : " on another thread in ") +
          testing::PrintToString(where.own_mode) + " during " + testing::PrintToString(where.mode)};
  capture open{all.capturing, where.mode};
  must(launch_tiny(all.capturing));
  EXPECT_TRUE(open.is_active());
  EXPECT_EQ(status_of(call, where, all), expected);
  if (expected != cudaSuccess) {
    EXPECT_EQ(open.info().status, cudaStreamCaptureStatusInvalidated);
    EXPECT_EQ(open.end(), cudaErrorStreamCaptureInvalidated);
    EXPECT_EQ(open.graph().get(), nullptr);
  } else {
    EXPECT_TRUE(open.is_active());
    must(launch_tiny(all.capturing));
    EXPECT_EQ(open.end(), cudaSuccess);
    EXPECT_NE(open.graph().get(), nullptr);
  }
  return std::move(open.graph());
}

TEST(LegalCall, SucceedsInEachModeAndTheCaptureLivesAndItsGraphRuns) {
  for (named_call const& call : legal_calls) {
    for (auto const mode : all_modes) {
      resources all;
      owned_graph const graph = graph_after(call, {mode, here, global}, cudaSuccess, all);
      run(graph.get(), all.other);
    }
  }
}

TEST(UnsafeCall, KillsACaptureUnlessTheThreadOrTheCaptureAllowsIt) {
  constexpr situation deadly[] = {
      {global, here, global}, {local, here, global}, {global, there, global}};
  // CUDA's documentation: a thread in ThreadLocal mode ignores the captures of others.
  constexpr situation harmless[] = {{relaxed, here, global},   {local, there, global},
                                    {relaxed, there, global},  {global, here, relaxed},
                                    {local, here, relaxed},    {relaxed, here, relaxed},
                                    {global, there, relaxed},  {local, there, relaxed},
                                    {relaxed, there, relaxed}, {global, there, local}};
  for (named_call const& call : unsafe_calls) {
    for (situation const& where : deadly) {
      resources all;
      graph_after(call, where, cudaErrorStreamCaptureUnsupported, all);
    }
    for (situation const& where : harmless) {
      resources all;
      EXPECT_EQ(node_count(graph_after(call, where, cudaSuccess, all)), 2U);
    }
  }
}

TEST(DeadlyCall, KillsEveryCaptureAlsoFromARelaxedThread) {
  for (named_call const& call : deadly_calls) {
    for (auto const mode : all_modes) {
      for (caller const from : {here, there}) {
        resources all;
        graph_after(call, {mode, from, relaxed}, call.expected, all);
      }
    }
  }
}

TEST(LaunchOfAnExec, IntoACapturingStreamIsUnsupported) {
  named_call const launch{"cudaGraphLaunch",
                          [](resources& r) { return cudaGraphLaunch(r.exec, r.capturing); }};
  for (auto const mode : all_modes) {
    for (caller const from : {here, there}) {
      resources all;
      capture open{all.capturing, mode};
      must(launch_tiny(all.capturing));
      EXPECT_EQ(status_of(launch, {mode, from, relaxed}, all), cudaErrorStreamCaptureUnsupported);
    }
  }
}

TEST(BlockingStreamCapture, SurvivesQuestionsAboutTheLegacyStreamAndNotAKernelOnIt) {
  for (auto const mode : all_modes) {
    owned_stream const stream = make_stream(cudaStreamDefault);
    {
      capture open{stream, mode};
      must(launch_tiny(stream));
      cudaStreamCaptureStatus status{};
      EXPECT_EQ(cudaStreamIsCapturing(cudaStreamLegacy, &status), cudaErrorStreamCaptureImplicit);
      EXPECT_EQ(info_of(cudaStreamLegacy).error, cudaErrorStreamCaptureImplicit);
      EXPECT_TRUE(open.is_active());
      EXPECT_EQ(open.end(), cudaSuccess);
      EXPECT_NE(open.graph().get(), nullptr);
    }
    capture open{stream, mode};
    must(launch_tiny(stream));
    EXPECT_NE(launch_tiny(cudaStreamLegacy), cudaSuccess);
    EXPECT_EQ(open.end(), cudaErrorStreamCaptureInvalidated);
    EXPECT_EQ(open.graph().get(), nullptr);
  }
}

TEST(InvalidatedCapture, ShowsStatusTwoAndNoGraph) {
  owned_stream const stream = make_stream();
  capture open{stream, global};
  EXPECT_NE(open.info().graph, nullptr);
  EXPECT_NE(cudaStreamQuery(stream), cudaSuccess);
  capture_info const now = open.info();
  EXPECT_EQ(now.error, cudaSuccess);
  EXPECT_EQ(static_cast<int>(now.status), 2);
  EXPECT_EQ(now.graph, nullptr);
  cudaStreamCaptureStatus status{};
  EXPECT_EQ(cudaStreamIsCapturing(stream, &status), cudaSuccess);
  EXPECT_EQ(status, cudaStreamCaptureStatusInvalidated);
}

}  // namespace
}  // namespace escrow::test
