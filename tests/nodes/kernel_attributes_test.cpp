// SPDX-License-Identifier: Apache-2.0
// Launch attributes of kernel nodes: set with the node, read back, changed in the graph; in an exec
// they stay. What CUDA does not take is explained, and changes nothing.
#include "graph_nodes.hpp"
#include "nodes_world.hpp"

namespace escrow::test {
namespace {

class KernelAttributes : public nodes_world {
 protected:
  void SetUp() override {
    if (compute_capability() < 9) GTEST_SKIP() << "the device has no clusters";
  }
  /// A kernel that writes the size of its cluster to the first cell, which it owns.
  [[nodiscard]] auto sizes(unsigned blocks, std::vector<cudaLaunchAttribute> attributes,
                           fate_ptr const& fate = make_fate()) {
    launch_config const config{.grid = {blocks}, .attributes = std::move(attributes)};
    return kernel_node(function_of<int*>(kernel_id::cluster_size), config, shared(fate));
  }
  [[nodiscard]] static std::vector<cudaLaunchAttribute> clusters(int size) {
    return {attribute_of(cudaLaunchAttributeClusterDimension, size)};
  }
  [[nodiscard]] static cudaLaunchAttributeValue read(node const& of, cudaLaunchAttributeID id) {
    cudaLaunchAttributeValue value{};
    must(cudaGraphKernelNodeGetAttribute(of.get(), id, &value));
    return value;
  }
  [[nodiscard]] int size_in(graph_exec& exec) {
    run(exec);
    return cells.load();
  }
  [[nodiscard]] int size_now() {
    graph_exec exec(*built);
    return size_in(exec);
  }
  static void expect_note(auto&& failing, std::vector<std::string> parts) {
    parts.push_back("tests/nodes/kernel_attributes_test.cpp");
    test::expect_error<cuda_error>(failing, parts);
    EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  }
};

TEST_F(KernelAttributes, AreTheNodesInTheGraphItsClonesAndExecs) {
  fate_ptr const fate = make_fate();
  auto attributes = clusters(2);
  attributes.push_back(attribute_of(cudaLaunchAttributePriority, -1));
  node const made = build(*built).add(sizes(8, attributes, fate));
  EXPECT_EQ(read(made, cudaLaunchAttributeClusterDimension).clusterDim.x, 2U);
  EXPECT_EQ(read(made, cudaLaunchAttributePriority).priority, -1);
  EXPECT_EQ(size_now(), 2);
  std::optional<graph_exec> exec(built->clone());
  built.reset();
  EXPECT_EQ(size_in(*exec), 2);
  EXPECT_TRUE(is_kept(fate));
  exec.reset();
  EXPECT_TRUE(is_released(fate));
}

TEST_F(KernelAttributes, ChangeWithTheNodeAndStayIfTheKindHasNone) {
  fate_ptr const first = make_fate();
  fate_ptr const second = make_fate();
  node const made = build(*built).add(sizes(8, clusters(2), first));
  std::optional<graph_exec> before(*built);
  made.set(sizes(9, clusters(3), second));
  EXPECT_EQ(size_now(), 3) << "neither grid has the other's clusters";
  EXPECT_EQ(size_in(*before), 2);
  before.reset();
  EXPECT_TRUE(is_released(first));
  made.set(sizes(6, {}));
  EXPECT_EQ(size_now(), 3);
  EXPECT_TRUE(is_released(second));
  made.set(sizes(6, {attribute_of(cudaLaunchAttributePriority, -2)}));
  EXPECT_EQ(size_now(), 3);
  EXPECT_EQ(read(made, cudaLaunchAttributePriority).priority, -2);
}

TEST_F(KernelAttributes, DoNotChangeInAnExec) {
  node const made = build(*built).add(sizes(8, clusters(2)));
  graph_exec exec(*built);
  expect_refused([&] { escrow::set(exec, made, sizes(8, clusters(4))); }, "set",
                 "`kind` has launch attributes, which CUDA does not change in an exec");
  made.set(sizes(8, clusters(4)));
  fate_ptr const fate = make_fate();
  escrow::set(exec, made, sizes(4, {}, fate));
  EXPECT_EQ(size_in(exec), 2);
  EXPECT_TRUE(is_kept(fate));
}

// CUDA's update keeps the size of clusters, and reports success.
TEST_F(KernelAttributes, AnExecIsNotUpdatedToOtherClusters) {
  auto const graph_with = [&](std::vector<cudaLaunchAttribute> attributes) {
    graph made(*worker);
    build(made).add(sizes(8, std::move(attributes)));
    return made;
  };
  graph const pairs = graph_with(clusters(2)), fours = graph_with(clusters(4)),
              none = graph_with({});
  graph_exec exec(pairs);
  graph_exec plain(none);
  std::vector<std::string> const text{"graph_exec::update", "runs in clusters of another size",
                                      "create another graph_exec"};
  for (graph const* const each : {&fours, &none}) {
    test::expect_error<cuda_error>([&] { exec.update(*each); }, text);
  }
  test::expect_error<cuda_error>([&] { plain.update(pairs); }, text);
  EXPECT_EQ(size_in(exec), 2);
  exec.update(graph_with(clusters(2)));
  EXPECT_EQ(size_in(exec), 2);
  node const child = build(*built).add(child_node(none));
  graph_exec outer(*built);
  expect_refused([&] { escrow::set(outer, child, child_node(pairs)); }, "set",
                 "a kernel of `kind`, or of the exec, runs in clusters");
  graph in_child(*worker);
  build(in_child).add(child_node(pairs));
  test::expect_error<cuda_error>([&] { outer.update(in_child); }, text);
}

TEST_F(KernelAttributes, ClustersInBodiesAreComparedBodyByBody) {
  auto const graph_with = [&](int place) {
    graph made(*worker);
    condition const first = build(made).make_condition(1);
    condition const second = build(made).make_condition(1);
    auto const one_node = build(made).add(if_node(first));
    auto const other = one_node.add(if_node(second));
    one_node.body().add(sizes(8, place == 0 ? clusters(2) : std::vector<cudaLaunchAttribute>()));
    other.body().add(sizes(8, place == 1 ? clusters(2) : std::vector<cudaLaunchAttribute>()));
    return made;
  };
  for (int i = 0; i < 20; ++i) {
    graph const its = graph_with(1), like_it = graph_with(1), other = graph_with(0);
    graph_exec exec(its);
    exec.update(like_it);
    test::expect_error<cuda_error>([&] { exec.update(other); },
                                   {"graph_exec::update", "runs in clusters of another size"});
  }
}

TEST_F(KernelAttributes, ClustersOfNodesThatWereAddedInAnotherOrderAreRefused) {
  graph const its(*worker), other(*worker);
  build(its).add(sizes(8, clusters(2))).add(sizes(8, {}));
  node const later = build(other).add(sizes(8, clusters(2)));
  later.after(build(other).add(sizes(8, {})));
  graph_exec exec(its);
  test::expect_error<cuda_error>(
      [&] { exec.update(other); },
      {"graph_exec::update", "nodes with clusters were added in another order"});
}

TEST_F(KernelAttributes, ThatCudaRefusesAreExplainedAndChangeNothing) {
  fate_ptr const kept = make_fate();
  fate_ptr const refused = make_fate();
  node const made = build(*built).add(sizes(8, clusters(2), kept));
  std::vector<cudaLaunchAttribute> const early{
      attribute_of(cudaLaunchAttributePriority, -1),
      attribute_of(cudaLaunchAttributeProgrammaticStreamSerialization, 1)};
  auto const add_with = [&](auto attributes) { build(*built).add(sizes(8, attributes, refused)); };
  expect_note([&] { add_with(clusters(3)); }, {"graph_builder_ref::add", "attribute 0 of `config`",
                                               "a cluster that divides `grid`"});
  expect_note([&] { add_with(early); }, {"attribute 1 of `config`, of id 6", "capture the launch"});
  expect_note([&] { made.set(sizes(8, clusters(3), refused)); },
              {"node::set", "a cluster that divides `grid`"});
  expect_note([&] { made.set(sizes(8, early, refused)); }, {"node::set", "of id 6"});
  expect_note([&] { made.set(sizes(9, {}, refused)); },
              {"node::set", "`grid` is no multiple of the node's clusters"});
  node const called = made.add(host_node([] {}));
  expect_note([&] { called.set(sizes(8, clusters(2))); }, {"the node is of kind host"});
  EXPECT_EQ(nodes_in(*built).size(), 2U);
  EXPECT_EQ(read(made, cudaLaunchAttributePriority).priority, 0);
  EXPECT_EQ(size_now(), 2);
  EXPECT_TRUE(is_kept(kept));
}

TEST_F(KernelAttributes, AreNotLostWithAKindThatWasMoved) {
  auto kind = kernel_node(add, {.grid = {2}, .attributes = clusters(2)}, cells.data(), 1);
  auto const twin = kind;
  build(*built).add(twin).add(twin);
  build(*built).add(std::move(kind));
  // NOLINTNEXTLINE(bugprone-use-after-move): that is tested
  expect_refused([&] { build(*built).add(std::move(kind)); }, "graph_builder_ref::add",
                 "`kind` was moved from");
  for (node const& each : nodes_in(*built)) {
    EXPECT_EQ(read(each, cudaLaunchAttributeClusterDimension).clusterDim.x, 2U);
  }
}

}  // namespace
}  // namespace escrow::test
