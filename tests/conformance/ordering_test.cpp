// How launches of graphs are ordered with each other.
#include <gtest/gtest.h>

#include <array>
#include <set>
#include <thread>

#include "build_graph.hpp"
#include "handles.hpp"
#include "memory.hpp"
#include "wait_until.hpp"

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
    EXPECT_EQ(cudaStreamSynchronize(first), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(second), cudaSuccess);
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

TEST_F(Launches, OfOneExecAreSerialisedOnTwoStreams) {
  owned_exec const exec = instantiate(graph);
  must(cudaGraphLaunch(exec, first));
  must(cudaGraphLaunch(exec, second));
  ASSERT_TRUE(wait_until([&] { return started.load() == 1; }));
  EXPECT_TRUE(stays_false([&] { return started.load() > 1; }));
  finish();
  EXPECT_EQ(started.load(), 2);
  EXPECT_EQ(ended.load(), 2);
}

TEST_F(Launches, MakeAnEventThatTheirGraphRecordsNotReadyUntilTheyEnd) {
  owned_event const event = make_event();
  must(cudaEventRecord(event, first));
  must(cudaStreamSynchronize(first));
  cudaGraphNode_t const wait = add_kernel(graph, wait_flag_call(flag.get()));
  cudaGraphNode_t record = nullptr;
  must(cudaGraphAddEventRecordNode(&record, graph, &wait, 1, event));
  owned_exec const exec = instantiate(graph);
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess);
  must(cudaGraphLaunch(exec, first));
  EXPECT_EQ(cudaEventQuery(event), cudaErrorNotReady);
  finish();
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess);
}

// A graph that waits for `event`, looks whether it is alone in `inside`, and records `event`.
owned_graph serialised_graph(cudaEvent_t event, int* inside, int* mismatches) {
  owned_graph graph = make_graph();
  cudaGraphNode_t node = nullptr;
  must(cudaGraphAddEventWaitNode(&node, graph, nullptr, 0, event));
  node = add_kernel(graph, add_call(inside, 1), node);
  node = add_kernel(graph, sleep_call(2000), node);
  node = add_kernel(graph, check_call(inside, 1, 1, mismatches), node);
  node = add_kernel(graph, add_call(inside, -1), node);
  cudaGraphNode_t record = nullptr;
  must(cudaGraphAddEventRecordNode(&record, graph, &node, 1, event));
  return graph;
}

TEST(ExternalEventNodes, SerialiseExecsWithEachOther) {
  device_ints inside;
  device_ints mismatches;
  owned_event const event = make_event();
  std::array const streams{make_stream(), make_stream()};
  owned_graph const graph = serialised_graph(event, inside.data(), mismatches.data());
  std::array const execs{instantiate(graph), instantiate(graph)};
  for (std::size_t i = 0; i < 8; ++i) {
    must(cudaGraphLaunch(execs[i % 2], streams[i % 2]));
  }
  EXPECT_EQ(mismatches.read(), std::vector<int>{0});
  EXPECT_EQ(inside.read(), std::vector<int>{0});
}

using stream_id = unsigned long long;

stream_id id_of(cudaStream_t stream) {
  stream_id result = 0;
  must(cudaStreamGetId(stream, &result));
  return result;
}

TEST(StreamId, IsNeverGivenAgain) {
  std::set<stream_id> ids;
  for (int i = 0; i < 500; ++i) {
    owned_stream const stream = make_stream();
    EXPECT_TRUE(ids.insert(id_of(stream)).second);
    EXPECT_EQ(ids.count(id_of(stream)), 1U);
  }
}

TEST(StreamId, OfThePerThreadStreamDiffersPerThread) {
  stream_id const here = id_of(cudaStreamPerThread);
  stream_id there = here;
  std::thread{[&] { there = id_of(cudaStreamPerThread); }}.join();
  EXPECT_NE(there, here);
  EXPECT_EQ(id_of(cudaStreamPerThread), here);
}

}  // namespace
}  // namespace escrow::test
