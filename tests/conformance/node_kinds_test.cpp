// SPDX-License-Identifier: Apache-2.0
// What each kind of node does when it runs, by its own call, and edges; nodes by the call for all
// kinds are in tests/nodes. And conditional nodes: which bodies run and who decides it, and what
// may be in them.
#include <set>

#include "graph_nodes.hpp"

namespace escrow::test {
namespace {

void CUDART_CB count_up(void* counter) {
  static_cast<std::atomic<int>*>(counter)->fetch_add(1);
}

class NodeKinds : public testing::Test {
 protected:
  std::atomic<int> calls{0};  // of count_up
  owned_event event = make_event();
  owned_stream stream = make_stream();
  owned_graph graph = make_graph();
};

TEST_F(NodeKinds, ACopyOfRowsKeepsToPitchesAndPositions) {
  device_ints const from{8};
  device_ints const to{6};
  must(launch_fill(stream, from.data(), 8, 3));
  must(launch_fill(stream, from.data() + 5, 1, 9));
  // Two rows of two out of rows of four, into rows of three at column 1.
  auto params =
      copy_params(to.data(), 3 * sizeof(int), from.data(), 4 * sizeof(int), 2 * sizeof(int), 2);
  params.srcPos.x = sizeof(int);
  params.dstPos.x = sizeof(int);
  add_node(cudaGraphAddMemcpyNode, graph, nullptr, &params);
  run(graph, stream);
  EXPECT_EQ(to.read(), (std::vector<int>{0, 3, 3, 0, 9, 3}));
  auto const wide = copy_params(from.data(), 4, from.data() + 4, 4, 8, 2);
  cudaGraphNode_t node = nullptr;
  EXPECT_NE(tried(cudaGraphAddMemcpyNode(&node, graph, nullptr, 0, &wide)), cudaSuccess);
  int const in[] = {1, 2, 3, 4, 5, 6};
  device_ints const memory{8};
  must(cudaMemcpy2D(memory.data(), 16, in, 12, 8, 2, cudaMemcpyHostToDevice));
  EXPECT_EQ(memory.read(), (std::vector<int>{1, 2, 0, 0, 4, 5, 0, 0}));
}

TEST_F(NodeKinds, NodesOfMostKindsRunInAChildGraph) {
  device_ints const memory{2};
  pinned_ints out{2};
  owned_graph const child = make_graph();
  auto* const filled = add_fill(child, fill_params(memory.data(), 4, 4, 2));
  auto* const copied = add_copy(child, out.data(), memory.data(), 2 * sizeof(int), filled);
  add_host(child, &count_up, &calls, copied);
  add_child(graph, child);
  owned_exec const exec = instantiate(graph);
  run(exec, stream);
  EXPECT_EQ(out.load(1), 4);
  EXPECT_EQ(calls, 1);
  run(exec, stream);
  EXPECT_EQ(calls, 2);
}

TEST_F(NodeKinds, ANodeOfEachKindCanBeDestroyedAndTheRestRuns) {
  device_ints const memory{4};
  std::array const doomed{add_fill(graph, fill_params(memory.data(), 1, 4, 4)),
                          add_copy(graph, memory.data(), memory.data() + 2, 8),
                          add_kernel(graph, add_call(memory.data(), 1)),
                          add_child(graph, tiny_graph()),
                          add_empty(graph),
                          add_host(graph, &count_up, &calls),
                          add_record(graph, event),
                          add_wait(graph, event)};
  std::size_t count = doomed.size();
  std::vector<cudaGraphNode_t> all(count);
  must(cudaGraphGetNodes(graph, all.data(), &count));
  EXPECT_EQ((std::set<cudaGraphNode_t>(all.begin(), all.end())),
            (std::set<cudaGraphNode_t>(doomed.begin(), doomed.end())));
  auto* const kept = add_kernel(graph, add_call(memory.data() + 3, 5), doomed[0]);
  for (auto* const each : all) EXPECT_EQ(cudaGraphDestroyNode(each), cudaSuccess);
  EXPECT_EQ(node_count(graph), 1U);
  cudaGraphNode_t left = nullptr;
  count = 1;
  must(cudaGraphGetRootNodes(graph, &left, &count));
  EXPECT_EQ(left, kept);
  run(graph, stream);
  EXPECT_EQ(memory.read(), (std::vector<int>{0, 0, 0, 5}));
}

TEST_F(NodeKinds, KernelsAndFillsCanBeDisabledInAnExecAndThenDoNothing) {
  device_ints const memory{4};
  pinned_ints pinned{2};
  auto* const first = add_kernel(graph, add_call(pinned.data(), 1));
  auto* const second = add_kernel(graph, add_call(pinned.data() + 1, 1), first);
  auto* const fill = add_fill(graph, fill_params(memory.data(), 3, 4, 1));
  auto* const empty = add_empty(graph);
  owned_exec const exec = instantiate(graph);
  auto const is_enabled = [&](cudaGraphNode_t node) {
    unsigned result = 0;
    must(cudaGraphNodeGetEnabled(exec, node, &result));
    return result == 1;
  };
  EXPECT_TRUE(is_enabled(first));
  EXPECT_EQ(cudaGraphNodeSetEnabled(exec, first, 0), cudaSuccess);
  EXPECT_EQ(cudaGraphNodeSetEnabled(exec, fill, 0), cudaSuccess);
  EXPECT_NE(tried(cudaGraphNodeSetEnabled(exec, empty, 0)), cudaSuccess);
  EXPECT_FALSE(is_enabled(first));
  EXPECT_TRUE(is_enabled(second));
  run(exec, stream);
  EXPECT_EQ(pinned.load(0), 0);
  EXPECT_EQ(pinned.load(1), 1);
  EXPECT_EQ(memory.read(), (std::vector<int>{0, 0, 0, 0}));
  EXPECT_EQ(cudaGraphNodeSetEnabled(exec, first, 1), cudaSuccess);
  run(exec, stream);
  EXPECT_EQ(pinned.load(0), 1);
}

#if CUDART_VERSION >= 12090  // the first with ownership
TEST_F(NodeKinds, AGraphThatIsMovedIntoItsParentBelongsToIt) {
  pinned_ints cell;
  owned_graph child = chain({add_call(cell.data(), 1)});
  auto p = params_of(cudaGraphNodeTypeGraph);
  p.graph.graph = child;
  p.graph.ownership = cudaGraphChildGraphOwnershipMove;
  auto* const node = add_any(graph, p);
  EXPECT_EQ(embedded_graph(node), child.get());
  owned_graph const another = make_graph();
  cudaGraphNode_t second = nullptr;
  EXPECT_NE(tried(cudaGraphAddNode(&second, another, nullptr, nullptr, 0, &p)), cudaSuccess);
  EXPECT_NE(status_of_instantiation(child), cudaSuccess);
  EXPECT_NE(tried(cudaGraphDestroy(child.release())), cudaSuccess);
  run(graph, stream);
  EXPECT_EQ(cell.load(), 1);
}
#endif

// The nodes that a call lists which takes an array, room for data of edges and a count.
std::vector<cudaGraphNode_t> listed(auto list) {
  std::size_t count = 0;
  must(list(nullptr, nullptr, &count));
  std::vector<cudaGraphNode_t> result(count);
  std::vector<cudaGraphEdgeData> edges(count);
  must(list(result.data(), edges.data(), &count));
  for (auto const& edge : edges) EXPECT_EQ(edge.type, 0);
  return result;
}

TEST(Edges, AreListedFromBothEndsAndAddedAndRemoved) {
  owned_graph const graph = make_graph();
  auto* const first = add_kernel(graph, tiny_call());
  auto* const second = add_kernel(graph, tiny_call(), first);
  auto* const third = add_kernel(graph, tiny_call(), second);
  ASSERT_EQ(cudaGraphAddDependencies(graph, &first, &third, nullptr, 1), cudaSuccess);
  using nodes = std::vector<cudaGraphNode_t>;
  auto const before = [](cudaGraphNode_t node) {
    return listed([&](auto... out) { return cudaGraphNodeGetDependencies(node, out...); });
  };
  EXPECT_EQ(before(third), (nodes{second, first}));
  EXPECT_EQ(listed([&](auto... out) { return cudaGraphNodeGetDependentNodes(first, out...); }),
            (nodes{second, third}));
  EXPECT_EQ(edge_count(graph), 3U);
  ASSERT_EQ(cudaGraphRemoveDependencies(graph, &second, &third, nullptr, 1), cudaSuccess);
  EXPECT_EQ(before(third), nodes{first});
  // Those that exist are not added, and those that do not are not removed.
  EXPECT_NE(tried(cudaGraphAddDependencies(graph, &first, &second, nullptr, 1)), cudaSuccess);
  EXPECT_NE(tried(cudaGraphRemoveDependencies(graph, &second, &first, nullptr, 1)), cudaSuccess);
  nodes from(2);
  nodes to(2);
  std::size_t count = 2;
  must(cudaGraphGetEdges(graph, from.data(), to.data(), nullptr, &count));
  EXPECT_EQ(count, 2U);
  EXPECT_EQ(from, (nodes{first, first}));
  EXPECT_TRUE(to == (nodes{second, third}) || to == (nodes{third, second}));
}

class Conditional : public testing::Test {
 protected:
  // A kernel that sets the condition to 0, for nodes behind it.
  cudaGraphNode_t add_setter(cudaGraph_t to, cudaGraphConditionalHandle condition,
                             cudaGraphNode_t behind = nullptr) {
    return add_kernel(to, set_condition_call(condition, zero.data()), behind);
  }
  cudaGraphNode_t add_count(cudaGraph_t to, unsigned i, cudaGraphNode_t behind = nullptr) {
    return add_kernel(to, add_call(cell(i), 1), behind);
  }
  int* cell(unsigned i) { return cells.data() + i; }

  pinned_ints cells{8};
  pinned_ints zero;
  owned_stream stream = make_stream();
  owned_graph graph = make_graph();
};

TEST_F(Conditional, AnUpdateSwapsTheWorkAndTheReferencesOfBodies) {
  witness of_old;
  witness of_new;
  owned_graph new_graph = make_graph();
  cudaGraph_t const old_body = add_conditional(graph);
  cudaGraph_t const new_body = add_conditional(new_graph);
  add_count(old_body, 0);
  add_count(new_body, 1);
  of_old.move_to(old_body);
  of_new.move_to(new_body);
  owned_exec exec = instantiate(graph);
  graph.reset();
  EXPECT_FALSE(of_old.ran());
  ASSERT_EQ(update(exec, new_graph), cudaSuccess);
  EXPECT_TRUE(of_old.wait());
  new_graph.reset();
  run(exec, stream);
  EXPECT_FALSE(of_new.ran());
  EXPECT_EQ(cells.load(0), 0);
  EXPECT_EQ(cells.load(1), 1);
  exec.reset();
  EXPECT_TRUE(of_new.wait());
}

TEST_F(Conditional, AGraphCanHaveOneExecAtATime) {
  add_kernel(add_conditional(graph), tiny_call());
  owned_exec first = instantiate(graph);
  EXPECT_EQ(status_of_instantiation(graph), cudaErrorNotSupported);
  first.reset();
  EXPECT_EQ(status_of_instantiation(graph), cudaSuccess);
}

TEST_F(Conditional, AGraphHasNoExecWhileACopyOfBeforeTheNodeIsAlive) {
  for (bool const is_embedded : {false, true}) {
    owned_graph from = make_graph();
    add_kernel(from, tiny_call());
    owned_graph copy = make_graph();
    if (is_embedded) {
      cudaGraphNode_t node = nullptr;
      must(cudaGraphAddChildGraphNode(&node, copy, nullptr, 0, from));
    } else {
      must(cudaGraphClone(copy.out(), from));
    }
    add_kernel(add_conditional(from), tiny_call());
    EXPECT_EQ(status_of_instantiation(from), cudaErrorNotSupported);
    add_kernel(add_conditional(copy), tiny_call());
    EXPECT_EQ(status_of_instantiation(copy), cudaSuccess);
    copy.reset();
    EXPECT_EQ(status_of_instantiation(from), cudaSuccess);
  }
}

TEST_F(Conditional, AValueOfARunningLaunchIsNotChangedByTheCallThatLaunchesAgain) {
  pinned_flag flag;
  auto const condition = make_condition(graph, 1);
  auto* const setter = add_setter(graph, condition);
  auto* const wait = add_kernel(graph, wait_flag_call(flag.get()), setter);
  add_count(add_conditional_node(graph, condition, cudaGraphCondTypeIf, 1, wait).bodies[0], 0);
  add_count(graph, 1, setter);
  owned_exec const exec = instantiate(graph);
  must(cudaGraphLaunch(exec, stream));
  ASSERT_TRUE(wait_until([&] { return cells.load(1) == 1; }));
  must(cudaGraphLaunch(exec, stream));
  flag.raise();
  must(cudaStreamSynchronize(stream));
  EXPECT_EQ(cells.load(0), 0);
  EXPECT_EQ(cells.load(1), 2);
}

TEST_F(Conditional, AValueOfAnInnerNodeIsNotItsDefaultAgainInTheNextTurnOfALoop) {
  auto const outer = make_condition(graph, 1);
  auto const inner = make_condition(graph, 1);
  auto* const body = add_conditional_node(graph, outer, cudaGraphCondTypeWhile).bodies[0];
  auto const node = add_conditional_node(body, inner, cudaGraphCondTypeIf);
  add_setter(node.bodies[0], inner, add_count(node.bodies[0], 1));
  auto* const turn = add_count(body, 0, node.node);
  add_kernel(body, set_condition_below_call(outer, cell(0), 3), turn);
  owned_exec const exec = instantiate(graph);
  run(exec, stream);
  EXPECT_EQ(cells.load(0), 3);
  EXPECT_EQ(cells.load(1), 1);
}

TEST_F(Conditional, SomeNodesInABodyKeepTheGraphFromBeingInstantiated) {
  owned_event const event = make_event();
  device_ints const device{4};
  std::vector<int> pageable(4);
  std::vector<std::function<void(cudaGraph_t)>> const forbidden{
      [&](cudaGraph_t to) { add_host(to, &count_up, nullptr); },
      [&](cudaGraph_t to) { add_record(to, event); }, [&](cudaGraph_t to) { add_wait(to, event); },
      [&](cudaGraph_t to) { add_copy(to, device.data(), pageable.data(), 4 * sizeof(int)); },
      [&](cudaGraph_t to) {
        owned_graph const child = make_graph();
        add_host(child, &count_up, nullptr);
        add_child(to, child);
      }};
  for (std::size_t i = 0; i < forbidden.size(); ++i) {
    for (bool const is_nested : {false, true}) {
      graph = make_graph();
      cudaGraph_t body = add_conditional(graph);
      if (is_nested) {
        auto const inner = make_condition(graph, 1);
        body = add_conditional_node(body, inner, cudaGraphCondTypeIf).bodies[0];
      }
      forbidden[i](body);
      EXPECT_EQ(status_of_instantiation(graph), cudaErrorInvalidValue) << i << is_nested;
    }
  }
}

TEST_F(Conditional, KernelsCopiesFillsChildrenAndEmptyNodesRunInABodyWhichMayBeEmpty) {
  add_conditional(graph);
  device_ints const device{4};
  auto* const body = add_conditional(graph);
  auto* const filled = add_fill(body, fill_params(device.data(), 7, 4, 4));
  auto* const copied = add_copy(body, cell(0), device.data(), 4 * sizeof(int),
                                add_empty(body, filled), cudaMemcpyDeviceToHost);
  cudaGraphNode_t const child = add_child(body, chain({add_call(cell(1), 1)}));
  must(cudaGraphAddDependencies(body, &copied, &child, nullptr, 1));
  run(graph, stream);
  EXPECT_EQ(cells.load(0), 7);
  EXPECT_EQ(cells.load(1), 8);
}

TEST_F(Conditional, NodesHaveAConditionOfTheirGraphAndTheNumberOfBodiesOfTheirType) {
  owned_graph const other = make_graph();
  auto const status = [&](cudaGraph_t of, cudaGraphConditionalNodeType type, unsigned bodies) {
    auto params = conditional_params(make_condition(of, 1), type, bodies);
    cudaGraphNode_t node = nullptr;
    return tried(cudaGraphAddNode(&node, graph, nullptr, nullptr, 0, &params));
  };
  EXPECT_EQ(status(other, cudaGraphCondTypeIf, 1), cudaErrorInvalidValue);
  for (auto const& [type, bodies] : {std::pair{cudaGraphCondTypeIf, 0U},
                                     {cudaGraphCondTypeIf, 3U},
                                     {cudaGraphCondTypeWhile, 0U},
                                     {cudaGraphCondTypeWhile, 2U},
                                     {cudaGraphCondTypeSwitch, 0U}}) {
    EXPECT_EQ(status(graph, type, bodies), cudaErrorInvalidValue) << type << bodies;
  }
  EXPECT_EQ(status(graph, cudaGraphCondTypeSwitch, 9), cudaSuccess);
  cudaGraphConditionalHandle flagged{};
  EXPECT_EQ(tried(cudaGraphConditionalHandleCreate(&flagged, graph, 0, 2)), cudaErrorInvalidValue)
      << "the default's flag is the only one";
}

TEST_F(Conditional, AConditionHasOneNode) {
  auto const condition = make_condition(graph, 1);
  auto const first = add_conditional_node(graph, condition, cudaGraphCondTypeIf);
  auto const again = [&] {
    cudaGraphNodeParams params{};
    params.type = cudaGraphNodeTypeConditional;
    params.conditional.handle = condition;
    params.conditional.type = cudaGraphCondTypeIf;
    params.conditional.size = 1;
    cudaGraphNode_t made = nullptr;
    return tried(cudaGraphAddNode(&made, graph, nullptr, nullptr, 0, &params));
  };
  EXPECT_EQ(again(), cudaErrorInvalidValue);
  EXPECT_EQ(node_count(graph), 1U);
  must(cudaGraphDestroyNode(first.node));
  EXPECT_EQ(again(), cudaSuccess);
}

TEST_F(Conditional, AConditionWithoutANodeKeepsTheGraphFromBeingInstantiated) {
  add_kernel(graph, tiny_call());
  auto const condition = make_condition(graph, 1);
  EXPECT_EQ(status_of_instantiation(graph), cudaErrorInvalidValue);
  auto* const node = add_conditional_node(graph, condition, cudaGraphCondTypeIf).node;
  EXPECT_EQ(status_of_instantiation(graph), cudaSuccess);
  EXPECT_EQ(tried(cudaGraphDestroyNode(node)), cudaSuccess);
  EXPECT_EQ(node_count(graph), 1U);
  EXPECT_EQ(status_of_instantiation(graph), cudaErrorInvalidValue);
  auto const again = add_conditional_node(graph, condition, cudaGraphCondTypeIf);
  add_kernel(again.bodies[0], add_call(cell(0), 3));
  run(graph, stream);
  EXPECT_EQ(cells.load(0), 3) << "the condition may get another node";
}

}  // namespace
}  // namespace escrow::test
