// Graphs with conditional nodes: which bodies run and who decides it, what may be in them, and
// their references (cuda-facts.md, sections 1 and 3).
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "build_graph.hpp"
#include "graph_nodes.hpp"
#include "memory.hpp"
#include "witness.hpp"

namespace escrow::test {
namespace {

void CUDART_CB do_nothing(void*) {}

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
      [&](cudaGraph_t to) { add_host(to, &do_nothing, nullptr); },
      [&](cudaGraph_t to) { add_record(to, event); }, [&](cudaGraph_t to) { add_wait(to, event); },
      [&](cudaGraph_t to) { add_copy(to, device.data(), pageable.data(), 4 * sizeof(int)); },
      [&](cudaGraph_t to) {
        owned_graph const child = make_graph();
        add_host(child, &do_nothing, nullptr);
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

TEST_F(Conditional, AConditionWithoutANodeKeepsTheGraphFromBeingInstantiated) {
  add_kernel(graph, tiny_call());
  auto const condition = make_condition(graph, 1);
  EXPECT_EQ(status_of_instantiation(graph), cudaErrorInvalidValue);
  auto* const node = add_conditional_node(graph, condition, cudaGraphCondTypeIf).node;
  EXPECT_EQ(status_of_instantiation(graph), cudaSuccess);
  EXPECT_EQ(tried(cudaGraphDestroyNode(node)), cudaSuccess);
  EXPECT_EQ(node_count(graph), 1U);
  EXPECT_EQ(status_of_instantiation(graph), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace escrow::test
