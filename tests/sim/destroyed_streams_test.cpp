// SPDX-License-Identifier: Apache-2.0
// Calls with a destroyed stream's handle end the process, where CUDA's driver crashes. Those with a
// stream that a reset has ended return an error.
#include <cuda.h>

#include "deep.hpp"
#include "graph_nodes.hpp"

namespace escrow::test {
namespace {

// What calls are given besides the stream.
struct arguments {
  cudaStream_t stream = nullptr;
  owned_event event = make_event();
  owned_graph graph = tiny_graph();
  owned_exec exec = instantiate(graph);
  device_ints memory{4};
  int number = 0;
  unsigned flags = 0;
  unsigned long long id = 0;
  void* address = nullptr;
  cudaGraph_t captured = nullptr;
  cudaStreamCaptureStatus status{};
  CUcontext context = nullptr;

  void* get_context = nullptr;

  arguments() {
    must(cudaGetDriverEntryPointByVersion("cuStreamGetCtx", &get_context, 9020, 0, nullptr));
  }
  [[nodiscard]] cudaError_t ask_driver() {
    auto* const ask = reinterpret_cast<CUresult (*)(CUstream, CUcontext*)>(get_context);
    return static_cast<cudaError_t>(ask(stream, &context));
  }
};

struct stream_call {
  char const* name;
  cudaError_t (*make)(arguments& with);
};

void CUDART_CB do_nothing(void* /*argument*/) {}

constexpr stream_call calls[] = {
    {"cudaStreamDestroy", [](arguments& a) { return cudaStreamDestroy(a.stream); }},
    {"cudaStreamSynchronize", [](arguments& a) { return cudaStreamSynchronize(a.stream); }},
    {"cudaStreamQuery", [](arguments& a) { return cudaStreamQuery(a.stream); }},
    {"cudaStreamWaitEvent", [](arguments& a) { return cudaStreamWaitEvent(a.stream, a.event, 0); }},
    {"cudaStreamGetId", [](arguments& a) { return cudaStreamGetId(a.stream, &a.id); }},
    {"cudaStreamGetDevice", [](arguments& a) { return cudaStreamGetDevice(a.stream, &a.number); }},
    {"cudaStreamGetFlags", [](arguments& a) { return cudaStreamGetFlags(a.stream, &a.flags); }},
    {"cudaStreamGetPriority",
     [](arguments& a) { return cudaStreamGetPriority(a.stream, &a.number); }},
    {"cudaStreamIsCapturing",
     [](arguments& a) { return cudaStreamIsCapturing(a.stream, &a.status); }},
    {"cudaStreamGetCaptureInfo",
     [](arguments& a) {
       return cudaStreamGetCaptureInfo(a.stream, &a.status, &a.id, nullptr, nullptr, nullptr,
                                       nullptr);
     }},
    {"cudaStreamBeginCapture",
     [](arguments& a) { return cudaStreamBeginCapture(a.stream, cudaStreamCaptureModeRelaxed); }},
    {"cudaStreamBeginCaptureToGraph",
     [](arguments& a) {
       return cudaStreamBeginCaptureToGraph(a.stream, a.graph, nullptr, nullptr, 0,
                                            cudaStreamCaptureModeRelaxed);
     }},
    {"cudaStreamEndCapture",
     [](arguments& a) { return cudaStreamEndCapture(a.stream, &a.captured); }},
    {"cudaStreamUpdateCaptureDependencies",
     [](arguments& a) {
       return cudaStreamUpdateCaptureDependencies(a.stream, nullptr, nullptr, 0,
                                                  cudaStreamSetCaptureDependencies);
     }},
    {"cudaEventRecord", [](arguments& a) { return cudaEventRecord(a.event, a.stream); }},
    {"cudaEventRecordWithFlags",
     [](arguments& a) { return cudaEventRecordWithFlags(a.event, a.stream, 0); }},
    {"cudaLaunchKernel", [](arguments& a) { return launch_tiny(a.stream); }},
    {"cudaLaunchHostFunc",
     [](arguments& a) { return cudaLaunchHostFunc(a.stream, &do_nothing, nullptr); }},
    {"cudaGraphLaunch", [](arguments& a) { return cudaGraphLaunch(a.exec, a.stream); }},
    {"cudaGraphUpload", [](arguments& a) { return cudaGraphUpload(a.exec, a.stream); }},
    {"cudaMemsetAsync",
     [](arguments& a) { return cudaMemsetAsync(a.memory.data(), 0, 4, a.stream); }},
    {"cudaMemcpyAsync",
     [](arguments& a) {
       return cudaMemcpyAsync(a.memory.data(), a.memory.data() + 1, 4, cudaMemcpyDefault, a.stream);
     }},
    {"cudaMallocAsync", [](arguments& a) { return cudaMallocAsync(&a.address, 16, a.stream); }},
    {"cudaFreeAsync", [](arguments& a) { return cudaFreeAsync(a.memory.data(), a.stream); }},
    {"cuStreamGetCtx", [](arguments& a) { return a.ask_driver(); }},
};

class DestroyedStream : public fresh_runtime {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(DestroyedStream, EndsTheProcessInEveryCall) {
  for (bool const has_work : {false, true}) {
    for (auto const& [name, make] : calls) {
      SCOPED_TRACE(name);
      EXPECT_DEATH(
          {
            arguments with;
            pinned_ints flag;  // never freed: the process ends
            owned_stream stream = make_stream();
            if (has_work) must(launch_wait_flag(stream, flag.data()));
            with.stream = stream.get();
            stream.reset();
            static_cast<void>(make(with));
          },
          std::string(name) + ".* with a stream that was destroyed");
    }
  }
}

TEST_F(DestroyedStream, EndsTheProcessAlsoSteppedAndWithAHandleThatWasNoStreams) {
  EXPECT_DEATH(
      {
        sim::reset({.stepped = true});
        cudaStream_t const stream = make_stream().get();
        static_cast<void>(cudaStreamQuery(stream));
      },
      "cudaStreamQuery on thread .* with a stream that was destroyed");
  EXPECT_DEATH(
      {
        int const no_stream = 0;
        static_cast<void>(
            cudaStreamQuery(reinterpret_cast<cudaStream_t>(const_cast<int*>(&no_stream))));
      },
      "with a stream that was destroyed");
}

TEST_F(DestroyedStream, ThatADeviceResetEndedIsAnErrorAndItsHandleIsNotGivenAgain) {
  for (auto const& [name, make] : calls) {
    SCOPED_TRACE(name);
    cudaStream_t const stream = make_stream().release();
    must(cudaDeviceReset());
    arguments with;
    with.stream = stream;
    EXPECT_EQ(make(with), cudaErrorInvalidResourceHandle);
    owned_stream const fresh = make_stream();
    EXPECT_NE(fresh, stream);
  }
}

TEST_F(DestroyedStream, OfDefaultIsNone) {
  for (cudaStream_t const stream : {cudaStream_t{}, cudaStreamLegacy, cudaStreamPerThread})
    EXPECT_EQ(cudaStreamDestroy(stream), cudaErrorInvalidResourceHandle);
}

using CallWithAStream = fresh_runtime;

TEST_F(CallWithAStream, IsRefusedInACallback) {
  for (auto const& [name, make] : calls) {
    SCOPED_TRACE(name);
    arguments with;
    owned_stream const stream = make_stream();
    with.stream = stream;
    cudaError_t status = cudaSuccess;
    auto call = [&, make = make] { status = make(with); };
    must(cudaLaunchHostFunc(
        stream, [](void* argument) { (*static_cast<decltype(call)*>(argument))(); }, &call));
    must(cudaStreamSynchronize(stream));
    EXPECT_EQ(status, cudaErrorNotPermitted);
  }
}

}  // namespace
}  // namespace escrow::test
