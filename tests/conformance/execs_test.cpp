// SPDX-License-Identifier: Apache-2.0
// How launches of execs are ordered with each other, what identifies a stream, and what may cross
// from one device to another; and what cudaGraphExecUpdate changes, refuses, and leaves as it was
// without an error.
#include <algorithm>
#include <set>
#include <tuple>

#include "graph_nodes.hpp"

namespace escrow::test {
namespace {

// A graph whose launches count themselves in `started`, wait for the flag, and count themselves in
// `ended`.
class Launches : public testing::Test {
 protected:
  pinned_ints started;
  pinned_ints ended;
  pinned_flag flag;
  owned_stream first = make_stream();
  owned_stream second = make_stream();
  owned_graph graph =
      chain({add_call(started.data(), 1), wait_flag_call(flag.get()), add_call(ended.data(), 1)});

  void finish() {
    flag.raise();
    must(cudaStreamSynchronize(first));
    must(cudaStreamSynchronize(second));
  }
};

TEST_F(Launches, OfTwoExecsOfOneGraphOverlapOnTwoStreams) {
  owned_exec const one = instantiate(graph);
  owned_exec const another = instantiate(graph);
  must(cudaGraphLaunch(one, first));
  must(cudaGraphLaunch(another, second));
  EXPECT_TRUE(wait_until([&] { return started.load() == 2; }));
  EXPECT_EQ(ended.load(), 0);
  finish();
  EXPECT_EQ(ended.load(), 2);
}

TEST_F(Launches, OfOneExecAreSerializedOnTwoStreams) {
  owned_exec const exec = instantiate(graph);
  must(cudaGraphLaunch(exec, first));
  must(cudaGraphLaunch(exec, second));
  ASSERT_TRUE(wait_until([&] { return started.load() == 1; }));
  EXPECT_TRUE(stays_false([&] { return started.load() > 1; }));
  finish();
  EXPECT_EQ(started.load(), 2);
  EXPECT_EQ(ended.load(), 2);
}

// A graph that waits for `event`, looks whether it is alone in `inside`, and records `event`.
owned_graph serialized_graph(cudaEvent_t event, int* inside, int* mismatches) {
  owned_graph graph = make_graph();
  cudaGraphNode_t node = add_wait(graph, event);
  node = add_kernel(graph, add_call(inside, 1), node);
  node = add_kernel(graph, sleep_call(2000), node);
  node = add_kernel(graph, check_call(inside, 1, 1, mismatches), node);
  node = add_kernel(graph, add_call(inside, -1), node);
  add_record(graph, event, node);
  return graph;
}

TEST(ExternalEventNodes, SerializeExecsWithEachOther) {
  device_ints inside;
  device_ints mismatches;
  owned_event const event = make_event();
  std::array const streams{make_stream(), make_stream()};
  owned_graph const graph = serialized_graph(event, inside.data(), mismatches.data());
  std::array const execs{instantiate(graph), instantiate(graph)};
  for (std::size_t i = 0; i < 8; ++i) must(cudaGraphLaunch(execs[i % 2], streams[i % 2]));
  EXPECT_EQ(mismatches.read(), std::vector<int>{0});
  EXPECT_EQ(inside.read(), std::vector<int>{0});
}

using stream_id = unsigned long long;

stream_id id_of(cudaStream_t stream) {
  stream_id result = 0;
  must(cudaStreamGetId(stream, &result));
  return result;
}

TEST(StreamId, IsNeverGivenAgainAndThatOfThePerThreadStreamDiffersPerThread) {
  std::set<stream_id> ids;
  for (int i = 0; i < 500; ++i) {
    owned_stream const stream = make_stream();
    EXPECT_TRUE(ids.insert(id_of(stream)).second);
    EXPECT_EQ(ids.count(id_of(stream)), 1U);
  }
  stream_id const here = id_of(cudaStreamPerThread);
  stream_id there = here;
  std::thread{[&] { there = id_of(cudaStreamPerThread); }}.join();
  EXPECT_NE(there, here);
  EXPECT_EQ(id_of(cudaStreamPerThread), here);
}

// Things of device 0, and device 1 current. Skips where there is one device.
class TwoDevices : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_two_devices()) GTEST_SKIP() << "needs two devices";
    must(cudaSetDevice(0));
    stream = make_stream();
    event = make_event();
    must(cudaEventRecord(event, stream));
    must(cudaStreamSynchronize(stream));
    exec = instantiate(tiny_graph());
    must(cudaSetDevice(1));
    stream_of_1 = make_stream();
    event_of_1 = make_event();
  }

  void TearDown() override {
    static_cast<void>(cudaGetLastError());
    static_cast<void>(cudaSetDevice(0));
  }

  owned_stream stream;
  owned_event event;
  owned_exec exec;
  owned_stream stream_of_1;
  owned_event event_of_1;
};

TEST_F(TwoDevices, RecordAnEventOnlyOnAStreamOfItsDeviceWhicheverIsCurrent) {
  EXPECT_EQ(tried(cudaEventRecord(event, stream_of_1)), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(tried(cudaEventRecord(event_of_1, stream)), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaEventRecord(event, stream), cudaSuccess);
  EXPECT_EQ(cudaEventSynchronize(event), cudaSuccess);
}

TEST_F(TwoDevices, WaitForEventsOfEachOther) {
  must(cudaSetDevice(0));
  pinned_ints order(2);
  pinned_flag flag;
  must(launch_wait_flag(stream, flag.get()));
  must(launch_add(stream, order.data(), 1));
  must(cudaEventRecord(event, stream));
  must(cudaSetDevice(1));
  EXPECT_EQ(cudaStreamWaitEvent(stream_of_1, event, 0), cudaSuccess);
  must(launch_copy(stream_of_1, order.data() + 1, order.data(), 1));
  EXPECT_EQ(cudaStreamQuery(stream_of_1), cudaErrorNotReady);
  flag.raise();
  EXPECT_EQ(cudaStreamSynchronize(stream_of_1), cudaSuccess);
  EXPECT_EQ(order.load(1), 1);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
}

TEST_F(TwoDevices, LetStreamsEventsAndExecsOfTheOtherBeQueriedLaunchedAndDestroyed) {
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess);
  EXPECT_EQ(cudaEventSynchronize(event), cudaSuccess);
  EXPECT_EQ(cudaStreamQuery(stream), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(cudaGraphLaunch(exec, stream), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(event.release()), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream.release()), cudaSuccess);
}

TEST_F(TwoDevices, FreeMemoryOfEachOtherAndHaveEachTheirOwnIdOfTheNullStream) {
  stream_id const on_1 = id_of(nullptr);
  must(cudaSetDevice(0));
  EXPECT_NE(id_of(nullptr), on_1);
  void* memory = nullptr;
  void* pool_memory = nullptr;
  must(cudaMalloc(&memory, 64));
  must(cudaMallocAsync(&pool_memory, 64, stream));
  must(cudaStreamSynchronize(stream));
  must(cudaSetDevice(1));
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
  EXPECT_EQ(cudaFreeAsync(pool_memory, stream), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
}

using attributes = std::vector<cudaLaunchAttribute>;

class GraphUpdate : public testing::Test {
 protected:
  [[nodiscard]] owned_graph captured(auto enqueue) {
    test::capture open{stream, cudaStreamCaptureModeRelaxed};
    enqueue();
    must(open.end());
    return std::move(open.graph());
  }
  [[nodiscard]] owned_graph captured_with(kernel_call call, attributes const& chosen,
                                          unsigned blocks = 1) {
    return captured([&] { must(call.launch(stream, blocks, chosen)); });
  }
  [[nodiscard]] owned_graph of_clusters(int size) {
    attributes chosen;
    if (size != 0) chosen.push_back(attribute_of(cudaLaunchAttributeClusterDimension, size));
    return captured_with(cluster_size_call(cells.data()), chosen, 8);
  }
  [[nodiscard]] int size_of(cudaGraphExec_t exec) {
    run(exec, stream);
    return cells.load();
  }
  /// The value of the only node of `graph`; empty: CUDA does not tell it.
  [[nodiscard]] static std::vector<int> read(cudaGraph_t graph, cudaLaunchAttributeID id) {
    cudaGraphNode_t node = nullptr;
    std::size_t count = 1;
    must(cudaGraphGetNodes(graph, &node, &count));
    cudaLaunchAttributeValue value{};
    cudaError_t const status = tried(cudaGraphKernelNodeGetAttribute(node, id, &value));
    EXPECT_TRUE(status == cudaSuccess || status == cudaErrorInvalidValue);
    return status == cudaSuccess ? std::vector<int>{value.cooperative} : std::vector<int>{};
  }
  [[nodiscard]] static cudaGraphExecUpdateResult refusal(cudaGraphExec_t exec, cudaGraph_t graph) {
    cudaGraphExecUpdateResultInfo info{};
    EXPECT_EQ(tried(cudaGraphExecUpdate(exec, graph, &info)), cudaErrorGraphExecUpdateFailure);
    return info.result;
  }

  owned_stream stream = make_stream();
  pinned_ints cells{8};
};

TEST_F(GraphUpdate, LeavesTheClustersOfAnExecThatWasUsedAndSaysThatItSucceeded) {
  if (compute_capability() < 9) GTEST_SKIP() << "the device has no clusters";
  for (auto const& [before, after] : {std::pair{0, 2}, {2, 0}, {2, 4}, {4, 2}}) {
    owned_exec const launched = instantiate(of_clusters(before));
    owned_exec const uploaded = instantiate(of_clusters(before));
    owned_exec const fresh = instantiate(of_clusters(before));
    EXPECT_EQ(size_of(launched), std::max(before, 1));
    must(cudaGraphUpload(uploaded, stream));
    for (cudaGraphExec_t const exec : {launched.get(), uploaded.get(), fresh.get()}) {
      EXPECT_EQ(update(exec, of_clusters(after)), cudaSuccess);
      bool const is_changed = exec == fresh.get() && after != 0;
      EXPECT_EQ(size_of(exec), is_changed ? after : std::max(before, 1)) << before << after;
    }
  }
}

TEST_F(GraphUpdate, OfLaunchAttributesNotAllCanBeRead) {
  if (compute_capability() < 9) GTEST_SKIP() << "the device has no clusters";
  owned_graph const graph =
      captured_with(tiny_call(),
                    {attribute_of(cudaLaunchAttributeClusterDimension, 2),
                     attribute_of(cudaLaunchAttributePreferredClusterDimension, 4),
                     attribute_of(cudaLaunchAttributePriority, -1)},
                    8);
  EXPECT_EQ(read(graph, cudaLaunchAttributeClusterDimension), (std::vector{2}));
  EXPECT_EQ(read(graph, cudaLaunchAttributePriority), (std::vector{-1}));
  EXPECT_EQ(read(graph, cudaLaunchAttributeCooperative), (std::vector{0}));
  EXPECT_EQ(read(graph, cudaLaunchAttributePreferredClusterDimension), (std::vector<int>{}));
}

TEST_F(GraphUpdate, RefusesOtherAttributesNodesAndEdgesAndChangesNothing) {
  auto const add = [this](int value) { must(launch_add(stream, cells.data(), value)); };
  auto const fill = [this] { must(cudaMemsetAsync(cells.data() + 4, 0, 4, stream)); };
  owned_graph const cooperative =
      captured_with(add_call(cells.data(), 10), {attribute_of(cudaLaunchAttributeCooperative, 1)});
  owned_exec const one = instantiate(captured_with(add_call(cells.data(), 1), {}));
  EXPECT_EQ(refusal(one, cooperative), cudaGraphExecUpdateErrorAttributesChanged);
  owned_exec const two = instantiate(captured([&] { add(1), add(1); }));
  EXPECT_EQ(refusal(two, captured([&] { add(10), fill(); })),
            cudaGraphExecUpdateErrorNodeTypeChanged);
  EXPECT_EQ(refusal(two, captured([&] { add(10), add(10), add(10); })),
            cudaGraphExecUpdateErrorTopologyChanged);
  owned_graph const apart = make_graph();
  add_kernel(apart, add_call(cells.data(), 10));
  add_kernel(apart, add_call(cells.data(), 10));
  EXPECT_EQ(refusal(two, apart), cudaGraphExecUpdateErrorTopologyChanged);
  run(one, stream);
  run(two, stream);
  EXPECT_EQ(cells.load(), 1 + 2) << "the first node was changed";
}

TEST_F(GraphUpdate, ChangesKernelsAndArguments) {
  owned_exec const exec = instantiate(captured_with(add_call(cells.data(), 1), {}));
  must(update(exec, captured_with(add_call(cells.data() + 1, 5), {})));
  run(exec, stream);
  EXPECT_EQ(cells.load(), 0);
  EXPECT_EQ(cells.load(1), 5);
  must(update(exec, captured([&] { must(launch_fill(stream, cells.data(), 1, 7)); })));
  run(exec, stream);
  EXPECT_EQ(cells.load(), 7);
}

}  // namespace
}  // namespace escrow::test
