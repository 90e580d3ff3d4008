// SPDX-License-Identifier: Apache-2.0
// Which calls a capture allows, and which kill it and when.
#include <cuda.h>

#include <ostream>

#include "graph_nodes.hpp"

namespace escrow::test {
namespace {

constexpr auto global = cudaStreamCaptureModeGlobal;
constexpr auto local = cudaStreamCaptureModeThreadLocal;
constexpr auto relaxed = cudaStreamCaptureModeRelaxed;

void CUDART_CB do_nothing(void*) {}

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
  unsigned long long id = 0;
  int device = 0;
  unsigned flags = 0;

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
  std::function<cudaError_t()> make;
  cudaError_t expected = cudaErrorStreamCaptureUnsupported;
};
using named_calls = std::vector<named_call>;

cudaError_t ask_the_driver_for_the_context_and_its_id(cudaStream_t stream) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  must(
      cudaGetDriverEntryPointByVersion("cuStreamGetCtx", &found, 9020, cudaEnableDefault, &result));
  CUcontext context = nullptr;
  auto const ask = reinterpret_cast<CUresult(CUDAAPI*)(CUstream, CUcontext*)>(found);
  CUresult const answer = ask(stream, &context);
  if (answer != CUDA_SUCCESS) return static_cast<cudaError_t>(answer);
  must(cudaGetDriverEntryPointByVersion("cuCtxGetId", &found, 12000, cudaEnableDefault, &result));
  unsigned long long id = 0;
  auto const ask_for_id =
      reinterpret_cast<CUresult(CUDAAPI*)(CUcontext, unsigned long long*)>(found);
  return static_cast<cudaError_t>(ask_for_id(context, &id));
}

// Calls that a capture of any mode allows.
named_calls legal_calls(resources& r) {
  return {
      {"EventCreate", [] { return cudaEventDestroy(make_event().release()); }},
      {"EventDestroy", [&] { return cudaEventDestroy(r.doomed_event.release()); }},
      {"EventRecordOnAnotherStream", [&] { return cudaEventRecord(r.event, r.other); }},
      {"StreamCreate", [] { return cudaStreamDestroy(make_stream().release()); }},
      {"StreamDestroyOfAnother", [&] { return cudaStreamDestroy(r.doomed_stream.release()); }},
      {"UserObjectCreate", [] { return cudaUserObjectRelease(witness{}.make(), 1); }},
      {"GraphRetainUserObject",
       [&] {
         return cudaGraphRetainUserObject(info_of(r.capturing).graph, witness{}.make(), 1,
                                          cudaGraphUserObjectMove);
       }},
      {"StreamGetCaptureInfo", [&] { return info_of(r.capturing).error; }},
      {"DriversStreamGetCtxAndCtxGetId",
       [&] { return ask_the_driver_for_the_context_and_its_id(r.capturing); }},
      {"ExternalWaitEvent",
       [&] { return cudaStreamWaitEvent(r.capturing, r.event, cudaEventWaitExternal); }},
      {"ExternalEventRecord",
       [&] { return cudaEventRecordWithFlags(r.event, r.capturing, cudaEventRecordExternal); }},
      {"LaunchHostFunc", [&] { return cudaLaunchHostFunc(r.capturing, &do_nothing, nullptr); }},
  };
}

// Potentially unsafe calls: they kill a capture unless the calling thread or the capture is
// relaxed.
named_calls unsafe_calls(resources& r) {
  return {
      {"Malloc", [&] { return cudaMalloc(&r.made_memory, 64); }},
      {"Free",
       [&] {
         cudaError_t const status = cudaFree(r.memory);
         r.memory = status == cudaSuccess ? nullptr : r.memory;
         return status;
       }},
      {"MallocHost", [&] { return cudaMallocHost(&r.made_pinned_memory, 64); }},
      {"MallocAsyncOnAnother", [&] { return cudaMallocAsync(&r.made_pool_memory, 64, r.other); }},
      {"EventQuery", [&] { return cudaEventQuery(r.event); }},
      {"EventSynchronize", [&] { return cudaEventSynchronize(r.event); }},
      {"StreamQueryOfAnother", [&] { return cudaStreamQuery(r.other); }},
      {"StreamSynchronizeOfAnother", [&] { return cudaStreamSynchronize(r.other); }},
      // Where it fails, it is not known whether the exec still exists, so it is not destroyed
      // again.
      {"GraphExecDestroy", [&] { return cudaGraphExecDestroy(r.exec.release()); }},
  };
}

// Calls that kill every capture, also from a relaxed thread.
named_calls deadly_calls(resources& r) {
  return {
      {"DeviceSynchronize", [] { return cudaDeviceSynchronize(); }},
      {"StreamQuery", [&] { return cudaStreamQuery(r.capturing); }},
      {"StreamGetId", [&] { return cudaStreamGetId(r.capturing, &r.id); }},
      {"StreamGetDevice", [&] { return cudaStreamGetDevice(r.capturing, &r.device); }},
      {"StreamGetFlags", [&] { return cudaStreamGetFlags(r.capturing, &r.flags); }},
      {"EventQueryOfOneRecordedInTheCapture",
       [&] {
         must(cudaEventRecord(r.event, r.capturing));
         return cudaEventQuery(r.event);
       },
       cudaErrorCapturedEvent},
      {"WaitForAnEagerlyRecordedEvent",
       [&] { return cudaStreamWaitEvent(r.capturing, r.event, 0); },
       cudaErrorStreamCaptureIsolation},
  };
}

// Runs `test` for each of the calls, with resources of its own.
void for_each_call(named_calls (*calls)(resources&), auto test) {
  for (std::size_t i = 0;; ++i) {
    resources all;
    named_calls const of = calls(all);
    if (i == of.size()) return;
    SCOPED_TRACE(of[i].name);
    test(all, of[i]);
  }
}

enum class caller { capturing_thread, other_thread };
constexpr auto here = caller::capturing_thread;
constexpr auto there = caller::other_thread;

// A capture, and a call's thread with that thread's own mode.
struct situation {
  cudaStreamCaptureMode mode;
  caller from;
  cudaStreamCaptureMode own_mode;
};

void PrintTo(situation const& where, std::ostream* out) {
  *out << (where.from == here ? "here in " : "elsewhere in ")
       << testing::PrintToString(where.own_mode) << " mode, during a capture in "
       << testing::PrintToString(where.mode);
}

cudaError_t status_of(named_call const& call, situation const& where) {
  cudaError_t result = cudaErrorUnknown;
  auto const make = [&] {
    thread_mode_scope const scope{where.own_mode};
    result = tried(call.make());
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
  SCOPED_TRACE(testing::PrintToString(where));
  capture open{all.capturing, where.mode};
  must(launch_tiny(all.capturing));
  EXPECT_TRUE(open.is_active());
  EXPECT_EQ(status_of(call, where), expected);
  if (expected != cudaSuccess) {
    EXPECT_EQ(open.info().status, cudaStreamCaptureStatusInvalidated);
    EXPECT_EQ(open.info().graph, nullptr);
    cudaStreamCaptureStatus status{};
    EXPECT_EQ(cudaStreamIsCapturing(all.capturing, &status), cudaSuccess);
    EXPECT_EQ(status, cudaStreamCaptureStatusInvalidated);
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
  for (auto const mode : all_capture_modes) {
    for_each_call(&legal_calls, [&](resources& all, named_call const& call) {
      owned_graph const graph = graph_after(call, {mode, here, global}, cudaSuccess, all);
      run(graph.get(), all.other);
    });
  }
}

TEST(UnsafeCall, KillsACaptureUnlessTheThreadOrTheCaptureAllowsIt) {
  for (situation const& where : {situation{global, here, global}, situation{local, here, global},
                                 situation{global, there, global}}) {
    for_each_call(&unsafe_calls, [&](resources& all, named_call const& call) {
      graph_after(call, where, cudaErrorStreamCaptureUnsupported, all);
    });
  }
  // CUDA's documentation: a thread in ThreadLocal mode ignores the captures of others.
  std::vector<situation> harmless{{relaxed, here, global},
                                  {local, there, global},
                                  {relaxed, there, global},
                                  {global, there, local}};
  for (auto const mode : all_capture_modes) {
    harmless.push_back({mode, here, relaxed});
    harmless.push_back({mode, there, relaxed});
  }
  for (situation const& where : harmless) {
    for_each_call(&unsafe_calls, [&](resources& all, named_call const& call) {
      EXPECT_EQ(node_count(graph_after(call, where, cudaSuccess, all)), 2U);
    });
  }
}

TEST(DeadlyCall, KillsEveryCaptureAlsoFromARelaxedThread) {
  for (auto const mode : all_capture_modes) {
    for (caller const from : {here, there}) {
      for_each_call(&deadly_calls, [&](resources& all, named_call const& call) {
        graph_after(call, {mode, from, relaxed}, call.expected, all);
      });
      resources all;
      capture open{all.capturing, mode};
      must(launch_tiny(all.capturing));
      named_call const launch{"", [&] { return cudaGraphLaunch(all.exec, all.capturing); }};
      EXPECT_EQ(status_of(launch, {mode, from, relaxed}), cudaErrorStreamCaptureUnsupported)
          << "but whether the capture lives is not said";
    }
  }
}

TEST(RecordOfAnotherThread, ChangesNothingInACaptureAndItsEventIsOfUseAgain) {
  for (auto const mode : all_capture_modes) {
    resources all;
    capture open{all.capturing, mode};
    must(launch_tiny(all.capturing));
    std::thread([&] { EXPECT_EQ(cudaEventRecord(all.event, all.capturing), cudaSuccess); }).join();
    EXPECT_TRUE(open.is_active());
    must(launch_tiny(all.capturing));
    EXPECT_EQ(open.end(), cudaSuccess);
    EXPECT_EQ(node_count(open.graph()), 2U);
    EXPECT_EQ(cudaEventRecord(all.event, all.other), cudaSuccess);
    EXPECT_EQ(cudaEventSynchronize(all.event), cudaSuccess);
    EXPECT_EQ(cudaEventQuery(all.event), cudaSuccess);
  }
}

TEST(BlockingStreamCapture, SurvivesQuestionsAboutTheLegacyStreamAndNotAKernelOnIt) {
  for (auto const mode : all_capture_modes) {
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

}  // namespace
}  // namespace escrow::test
