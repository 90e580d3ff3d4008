// SPDX-License-Identifier: Apache-2.0
// The driver's functions that the library calls in place of the runtime's: they say the same, with
// the same numbers of errors, on threads without a context too, and leave the runtime's last error
// alone.
#include <cuda.h>

#include <cstring>
#include <thread>
#include <vector>

#include "build_graph.hpp"
#include "capturing.hpp"
#include "driver_function.hpp"
#include "graph_nodes.hpp"

namespace escrow::test {
namespace {

class DriverCalls : public testing::Test {
 protected:
  using capture_state = CUstreamCaptureStatus;

  CUresult(CUDAAPI* is_capturing)(CUstream, capture_state*) =
      driver_function<decltype(is_capturing)>("cuStreamIsCapturing", 10000);
  CUresult(CUDAAPI* capture_info)(CUstream, capture_state*, cuuint64_t*, CUgraph*,
                                  CUgraphNode const**, CUgraphEdgeData const**, std::size_t*) =
      driver_function<decltype(capture_info)>("cuStreamGetCaptureInfo", 12030);
  CUresult(CUDAAPI* id_of)(CUstream,
                           unsigned long long*) = driver_function<decltype(id_of)>("cuStreamGetId",
                                                                                   12000);

  struct told_capture {
    capture_state state{};
    cuuint64_t id = 0;
    CUgraph graph = nullptr;
    CUgraphNode const* nodes = nullptr;
    CUgraphEdgeData const* edges = nullptr;
    std::size_t count = 0;
  };
  [[nodiscard]] CUresult capture_of(CUstream asked, told_capture& told) const {
    return capture_info(asked, &told.state, &told.id, &told.graph, &told.nodes, &told.edges,
                        &told.count);
  }
  [[nodiscard]] CUresult state_of(CUstream asked, capture_state& state) const {
    CUresult const result = is_capturing(asked, &state);
    told_capture also;
    EXPECT_EQ(capture_of(asked, also), result);
    EXPECT_EQ(also.state, state);
    return result;
  }
  void expect_state(capture_state expected) const {
    capture_state state{};
    EXPECT_EQ(state_of(stream, state), CUDA_SUCCESS);
    EXPECT_EQ(state, expected);
    cudaStreamCaptureStatus told{};
    EXPECT_EQ(cudaStreamIsCapturing(stream, &told), cudaSuccess);
    EXPECT_EQ(static_cast<int>(told), static_cast<int>(expected));
  }

  owned_stream stream = make_stream();
  owned_stream other = make_stream();
  owned_event event = make_event();
};

TEST_F(DriverCalls, TellTheStateOfAStreamAsTheRuntimeDoes) {
  expect_state(CU_STREAM_CAPTURE_STATUS_NONE);
  test::capture open(stream, cudaStreamCaptureModeRelaxed);
  must(launch_tiny(stream));
  expect_state(CU_STREAM_CAPTURE_STATUS_ACTIVE);
  ASSERT_NE(tried(cudaStreamSynchronize(stream)), cudaSuccess);
  expect_state(CU_STREAM_CAPTURE_STATUS_INVALIDATED);
}

TEST_F(DriverCalls, TellTheGraphItsIdAndWhereACaptureIsAsTheRuntimeDoes) {
  test::capture open(stream, cudaStreamCaptureModeRelaxed);
  must(launch_tiny(stream));
  must(cudaEventRecord(event, stream));
  must(cudaStreamWaitEvent(other, event, 0));
  must(launch_tiny(other));
  owned_event const joined = make_event();
  must(cudaEventRecord(joined, other));
  must(launch_tiny(stream));
  must(cudaStreamWaitEvent(stream, joined, 0));  // the next node has two dependencies
  told_capture by_driver;
  ASSERT_EQ(capture_of(stream, by_driver), CUDA_SUCCESS);
  // Valid until the next call on the stream.
  std::vector<cudaGraphNode_t> const after(by_driver.nodes, by_driver.nodes + by_driver.count);
  EXPECT_EQ(after.size(), 2U);
  ASSERT_NE(by_driver.edges, nullptr);
  EXPECT_TRUE(by_driver.edges[0].from_port == 0 && by_driver.edges[0].type == 0);
  auto const by_runtime = open.info();
  EXPECT_EQ(by_driver.id, by_runtime.id);
  EXPECT_EQ(by_driver.graph, by_runtime.graph);
  must(open.end());
}

TEST_F(DriverCalls, TellTheIdOfAStreamAsTheRuntimeDoes) {
  unsigned long long id = 0;
  unsigned long long told = 0;
  ASSERT_EQ(id_of(stream, &id), CUDA_SUCCESS);
  must(cudaStreamGetId(stream, &told));
  EXPECT_EQ(id, told);
}

TEST_F(DriverCalls, TellOfDefaultStreamsAsTheRuntimeDoes) {
  for (cudaStream_t const each : {cudaStream_t{}, cudaStreamLegacy, cudaStreamPerThread}) {
    unsigned long long id = 0;
    unsigned long long told = 0;
    ASSERT_EQ(id_of(each, &id), CUDA_SUCCESS);
    must(cudaStreamGetId(each, &told));
    EXPECT_EQ(id, told);
    capture_state state{};
    EXPECT_EQ(state_of(each, state), CUDA_SUCCESS);
    EXPECT_EQ(state, CU_STREAM_CAPTURE_STATUS_NONE);
  }
  {
    test::capture const open(cudaStreamPerThread, cudaStreamCaptureModeRelaxed);
    capture_state state{};
    EXPECT_EQ(state_of(cudaStreamPerThread, state), CUDA_SUCCESS);
    EXPECT_EQ(state, CU_STREAM_CAPTURE_STATUS_ACTIVE);
  }
  owned_stream const blocking = make_stream(cudaStreamDefault);
  test::capture const open(blocking, cudaStreamCaptureModeRelaxed);
  capture_state state{};
  EXPECT_EQ(state_of(cudaStreamLegacy, state), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
}

TEST_F(DriverCalls, KnowNoDefaultStreamsOnAThreadThatHasNoContext) {
  for (bool const has_one : {false, true}) {
    std::thread([&] {
      if (has_one) must(cudaSetDevice(0));
      CUresult const expected = has_one ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
      for (cudaStream_t const each : {cudaStream_t{}, cudaStreamLegacy, cudaStreamPerThread}) {
        capture_state state{};
        EXPECT_EQ(state_of(each, state), expected);
        unsigned long long id = 0;
        EXPECT_EQ(id_of(each, &id), expected);
      }
    }).join();
  }
}

TEST_F(DriverCalls, TellTheTypeOfANodeAsTheRuntimeDoes) {
  auto* const type_of = driver_function<CUresult(CUDAAPI*)(CUgraphNode, CUgraphNodeType*)>(
      "cuGraphNodeGetType", 10000);
  owned_graph const graph = make_graph();
  owned_graph const child = tiny_graph();
  add_child(graph, child);
  add_kernel(graph, tiny_call());
  add_conditional(graph);
  cudaGraphNode_t empty = nullptr;
  must(cudaGraphAddEmptyNode(&empty, graph, nullptr, 0));
  cudaEvent_t const recorded = event;
  must(cudaGraphAddEventRecordNode(&empty, graph, nullptr, 0, recorded));
  std::vector<cudaGraphNode_t> nodes(node_count(graph));
  std::size_t count = nodes.size();
  must(cudaGraphGetNodes(graph, nodes.data(), &count));
  for (cudaGraphNode_t const each : nodes) {
    CUgraphNodeType by_driver{};
    cudaGraphNodeType by_runtime{};
    EXPECT_EQ(type_of(each, &by_driver), CUDA_SUCCESS);
    must(cudaGraphNodeGetType(each, &by_runtime));
    EXPECT_EQ(static_cast<int>(by_driver), static_cast<int>(by_runtime));
  }
}

TEST_F(DriverCalls, TellTheDependenciesOfANodeAsTheRuntimeDoes) {
  auto* const dependencies_of =
      driver_function<CUresult(CUDAAPI*)(CUgraphNode, CUgraphNode*, CUgraphEdgeData*,
                                         std::size_t*)>("cuGraphNodeGetDependencies", 12030);
  owned_graph const graph = make_graph();
  cudaGraphNode_t const early = add_kernel(graph, tiny_call());
  cudaGraphNode_t const late = add_kernel(graph, tiny_call());
  cudaGraphNode_t const asked = add_kernel(graph, tiny_call());
  must(cudaGraphAddDependencies(graph, &early, &asked, &trigger_edge, 1));
  must(cudaGraphAddDependencies(graph, &late, &asked, nullptr, 1));
  for (std::size_t const room : {0U, 1U, 2U, 4U}) {
    std::vector<cudaGraphNode_t> by_driver(4);
    std::vector<CUgraphEdgeData> edges_by_driver(4);
    std::vector<cudaGraphNode_t> by_runtime(4);
    std::vector<cudaGraphEdgeData> edges_by_runtime(4);
    std::size_t driver_count = room;
    std::size_t runtime_count = room;
    bool const is_count_alone = room == 0;
    EXPECT_EQ(dependencies_of(asked, is_count_alone ? nullptr : by_driver.data(),
                              is_count_alone ? nullptr : edges_by_driver.data(), &driver_count),
              CUDA_SUCCESS);
    must(cudaGraphNodeGetDependencies(asked, is_count_alone ? nullptr : by_runtime.data(),
                                      is_count_alone ? nullptr : edges_by_runtime.data(),
                                      &runtime_count));
    EXPECT_EQ(driver_count, runtime_count) << room;
    EXPECT_EQ(by_driver, by_runtime) << room;
    EXPECT_EQ(std::memcmp(edges_by_driver.data(), edges_by_runtime.data(),
                          edges_by_driver.size() * sizeof(CUgraphEdgeData)),
              0)
        << room;
  }
}

TEST_F(DriverCalls, ExchangeTheModeThatTheRuntimeHas) {
  auto* const exchange = driver_function<CUresult(CUDAAPI*)(CUstreamCaptureMode*)>(
      "cuThreadExchangeStreamCaptureMode", 10010);
  auto by_runtime = cudaStreamCaptureModeThreadLocal;
  must(cudaThreadExchangeStreamCaptureMode(&by_runtime));
  EXPECT_EQ(by_runtime, cudaStreamCaptureModeGlobal) << "a thread begins so";
  CUstreamCaptureMode by_driver = CU_STREAM_CAPTURE_MODE_RELAXED;
  EXPECT_EQ(exchange(&by_driver), CUDA_SUCCESS);
  EXPECT_EQ(by_driver, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  must(cudaThreadExchangeStreamCaptureMode(&by_runtime));
  EXPECT_EQ(by_runtime, cudaStreamCaptureModeRelaxed);
}

TEST_F(DriverCalls, WorkOnAThreadThatHasNoContext) {
  std::thread([&] {
    capture_state state{};
    EXPECT_EQ(state_of(stream, state), CUDA_SUCCESS);
    unsigned long long id = 0;
    EXPECT_EQ(id_of(stream, &id), CUDA_SUCCESS);
  }).join();
}

TEST_F(DriverCalls, FailWithTheRuntimesNumbersAndLeaveItsLastErrorAlone) {
  must(cudaGetDeviceCount(nullptr) == cudaErrorInvalidValue, "the caller's own error");
  unsigned long long id = 0;
  {
    test::capture const open(stream, cudaStreamCaptureModeRelaxed);
    EXPECT_EQ(id_of(stream, &id), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    EXPECT_EQ(cudaPeekAtLastError(), cudaErrorInvalidValue);
    expect_state(CU_STREAM_CAPTURE_STATUS_INVALIDATED);
  }
  static_cast<void>(cudaGetLastError());
  test::capture const open(stream, cudaStreamCaptureModeRelaxed);
  EXPECT_EQ(tried(cudaStreamGetId(stream, &id)), cudaErrorStreamCaptureUnsupported);
}

struct asked_in_callback {
  CUresult(CUDAAPI* is_capturing)(CUstream, CUstreamCaptureStatus*);
  CUstream stream;
  CUresult answer = CUDA_ERROR_UNKNOWN;
  cudaError_t answer_of_runtime = cudaErrorUnknown;
};
void CUDART_CB ask(void* data) {
  auto& asked = *static_cast<asked_in_callback*>(data);
  CUstreamCaptureStatus state{};
  asked.answer = asked.is_capturing(asked.stream, &state);
  cudaStreamCaptureStatus told{};
  asked.answer_of_runtime = tried(cudaStreamIsCapturing(asked.stream, &told));
}

TEST_F(DriverCalls, AnswerInCallbacksWhereTheRuntimeRefuses) {
  asked_in_callback asked{is_capturing, other};
  must(cudaLaunchHostFunc(stream, &ask, &asked));
  must(cudaStreamSynchronize(stream));
  EXPECT_EQ(asked.answer, CUDA_SUCCESS);
  EXPECT_EQ(asked.answer_of_runtime, cudaErrorNotPermitted);
}

}  // namespace
}  // namespace escrow::test
