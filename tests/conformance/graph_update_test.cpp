// What cudaGraphExecUpdate changes, refuses, and leaves as it was without an error.
#include <gtest/gtest.h>

#include <tuple>
#include <vector>

#include "build_graph.hpp"
#include "capturing.hpp"
#include "graph_nodes.hpp"
#include "memory.hpp"
#include "wait_until.hpp"

namespace escrow::test {
namespace {

using attributes = std::vector<cudaLaunchAttribute>;

class GraphUpdate : public testing::Test {
 protected:
  /// Whether clusters exist.
  [[nodiscard]] static bool has_clusters() {
    int major = 0;
    must(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
    return major >= 9;
  }
  template <class Enqueue>
  [[nodiscard]] owned_graph captured(Enqueue enqueue) {
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
  pinned_flag flag;
};

TEST_F(GraphUpdate, LeavesTheClustersOfAnExecThatWasUsedAndSaysThatItSucceeded) {
  if (!has_clusters()) GTEST_SKIP() << "the device has no clusters";
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
  if (!has_clusters()) GTEST_SKIP() << "the device has no clusters";
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

TEST_F(GraphUpdate, InFlightAffectsOnlyLaterLaunches) {
  auto const behind_flag = [this](int value) {
    return captured([&] {
      must(launch_wait_flag(stream, flag.get()));
      must(launch_copy(stream, cells.data() + 1, cells.data(), 1));
      must(launch_add(stream, cells.data(), value));
    });
  };
  owned_graph const other = behind_flag(10);
  owned_exec const exec = instantiate(behind_flag(1));
  must(cudaGraphLaunch(exec, stream));
  must(update(exec, other));
  must(cudaGraphLaunch(exec, stream));
  must(update(exec, behind_flag(100)));
  EXPECT_EQ(cells.load(), 0);
  flag.raise();
  must(cudaStreamSynchronize(stream));
  EXPECT_EQ(cells.load(1), 1) << "what the first launch added";
  EXPECT_EQ(cells.load(), 11);
}

}  // namespace
}  // namespace escrow::test
