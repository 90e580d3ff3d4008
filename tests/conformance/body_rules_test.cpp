// What CUDA accepts in the bodies of conditional nodes, and which handles and sizes of nodes.
#include <gtest/gtest.h>

#include <array>
#include <ostream>
#include <string>
#include <vector>

#include "build_graph.hpp"
#include "conditional_nodes.hpp"
#include "graph_nodes.hpp"
#include "handles.hpp"
#include "memory.hpp"

namespace escrow::test {
namespace {

void CUDART_CB do_nothing(void*) {}

// What the nodes work on; lives as long as the graphs.
struct operands {
  owned_event event = make_event();
  device_ints device{4};
  pinned_ints pinned{4};
  std::vector<int> pageable = std::vector<int>(4);
};

struct node_maker {
  char const* name;
  void (*add)(operands&, cudaGraph_t);

  friend void PrintTo(node_maker const& maker, std::ostream* out) { *out << maker.name; }
};

void add_host(operands&, cudaGraph_t graph) {
  cudaGraphNode_t node = nullptr;
  cudaHostNodeParams const params{&do_nothing, nullptr};
  must(cudaGraphAddHostNode(&node, graph, nullptr, 0, &params));
}

constexpr std::array forbidden{
    node_maker{"HostFunction", &add_host},
    node_maker{"EventRecord",
               [](operands& all, cudaGraph_t graph) {
                 cudaGraphNode_t node = nullptr;
                 must(cudaGraphAddEventRecordNode(&node, graph, nullptr, 0, all.event));
               }},
    node_maker{"EventWait",
               [](operands& all, cudaGraph_t graph) {
                 cudaGraphNode_t node = nullptr;
                 must(cudaGraphAddEventWaitNode(&node, graph, nullptr, 0, all.event));
               }},
    node_maker{"CopyOfPageableMemory",
               [](operands& all, cudaGraph_t graph) {
                 add_copy(graph, all.device.data(), all.pageable.data(), 4 * sizeof(int));
               }},
    node_maker{"ChildWithAHostFunction",
               [](operands& all, cudaGraph_t graph) {
                 owned_graph const child = make_graph();
                 add_host(all, child);
                 add_child(graph, child);
               }},
};

class BodyRules : public testing::Test {
 protected:
  cudaGraph_t add_body(unsigned value = 1) {
    return add_conditional_node(graph, make_condition(graph, value), cudaGraphCondTypeIf).bodies[0];
  }

  operands all;
  owned_graph graph = make_graph();
};

class ForbiddenInABody : public BodyRules, public testing::WithParamInterface<node_maker> {};

TEST_P(ForbiddenInABody, KeepsTheGraphFromBeingInstantiated) {
  GetParam().add(all, add_body());
  owned_exec exec;
  EXPECT_EQ(cudaGraphInstantiate(exec.out(), graph, 0), cudaErrorInvalidValue);
  static_cast<void>(cudaGetLastError());
}

TEST_P(ForbiddenInABody, KeepsItFromThatInABodyInsideABodyAsWell) {
  auto* const body = add_body();
  auto const inner = make_condition(graph, 1);
  GetParam().add(all, add_conditional_node(body, inner, cudaGraphCondTypeIf).bodies[0]);
  owned_exec exec;
  EXPECT_EQ(cudaGraphInstantiate(exec.out(), graph, 0), cudaErrorInvalidValue);
  static_cast<void>(cudaGetLastError());
}

INSTANTIATE_TEST_SUITE_P(Kinds, ForbiddenInABody, testing::ValuesIn(forbidden),
                         [](auto const& one) { return std::string{one.param.name}; });

TEST_F(BodyRules, KernelsCopiesFillsChildrenAndEmptyNodesRunInABody) {
  auto* const body = add_body();
  cudaMemsetParams fill{};
  fill.dst = all.device.data();
  fill.value = 7;
  fill.elementSize = 4;
  fill.width = 4;
  fill.height = 1;
  cudaGraphNode_t filled = nullptr;
  cudaGraphNode_t empty = nullptr;
  cudaGraphNode_t copied = nullptr;
  must(cudaGraphAddMemsetNode(&filled, body, nullptr, 0, &fill));
  must(cudaGraphAddEmptyNode(&empty, body, &filled, 1));
  must(cudaGraphAddMemcpyNode1D(&copied, body, &empty, 1, all.pinned.data(), all.device.data(),
                                4 * sizeof(int), cudaMemcpyDeviceToHost));
  owned_graph const child = chain({add_call(all.pinned.data() + 1, 1)});
  cudaGraphNode_t const node = add_child(body, child);
  must(cudaGraphAddDependencies(body, &copied, &node, nullptr, 1));
  owned_exec const exec = instantiate(graph);
  owned_stream const stream = make_stream();
  must(cudaGraphLaunch(exec, stream));
  must(cudaStreamSynchronize(stream));
  EXPECT_EQ(all.pinned.load(0), 7);
  EXPECT_EQ(all.pinned.load(1), 8);
}

TEST_F(BodyRules, AnEmptyBodyIsLegal) {
  add_body();
  owned_exec const exec = instantiate(graph);
  owned_stream const stream = make_stream();
  must(cudaGraphLaunch(exec, stream));
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
}

cudaError_t add_with(cudaGraph_t graph, cudaGraphConditionalHandle condition,
                     cudaGraphConditionalNodeType type, unsigned bodies) {
  auto params = conditional_params(condition, type, bodies);
  cudaGraphNode_t node = nullptr;
  auto const status = cudaGraphAddNode(&node, graph, nullptr, nullptr, 0, &params);
  static_cast<void>(cudaGetLastError());
  return status;
}

TEST_F(BodyRules, TheHandleOfAnotherGraphIsRefused) {
  owned_graph const other = make_graph();
  EXPECT_EQ(add_with(graph, make_condition(other, 1), cudaGraphCondTypeIf, 1),
            cudaErrorInvalidValue);
}

TEST_F(BodyRules, AnIfHasOneBodyOrTwoAWhileOneASwitchAtLeastOne) {
  auto const status = [&](cudaGraphConditionalNodeType type, unsigned bodies) {
    return add_with(graph, make_condition(graph, 0), type, bodies);
  };
  EXPECT_EQ(status(cudaGraphCondTypeIf, 0), cudaErrorInvalidValue);
  EXPECT_EQ(status(cudaGraphCondTypeIf, 3), cudaErrorInvalidValue);
  EXPECT_EQ(status(cudaGraphCondTypeWhile, 0), cudaErrorInvalidValue);
  EXPECT_EQ(status(cudaGraphCondTypeWhile, 2), cudaErrorInvalidValue);
  EXPECT_EQ(status(cudaGraphCondTypeSwitch, 0), cudaErrorInvalidValue);
  EXPECT_EQ(status(cudaGraphCondTypeSwitch, 9), cudaSuccess);
}

TEST_F(BodyRules, AHandleWithoutANodeKeepsTheGraphFromBeingInstantiated) {
  add_kernel(graph, tiny_call());
  auto const condition = make_condition(graph, 1);
  owned_exec exec;
  EXPECT_EQ(tried(cudaGraphInstantiate(exec.out(), graph, 0)), cudaErrorInvalidValue);
  ASSERT_EQ(add_with(graph, condition, cudaGraphCondTypeIf, 1), cudaSuccess);
  EXPECT_EQ(tried(cudaGraphInstantiate(exec.out(), graph, 0)), cudaSuccess);
}

TEST_F(BodyRules, AHandleWhoseNodeWasDestroyedDoesSoAsWell) {
  add_kernel(graph, tiny_call());
  auto* const node =
      add_conditional_node(graph, make_condition(graph, 1), cudaGraphCondTypeIf).node;
  EXPECT_EQ(tried(cudaGraphDestroyNode(node)), cudaSuccess);
  EXPECT_EQ(node_count(graph), 1U);
  owned_exec exec;
  EXPECT_EQ(tried(cudaGraphInstantiate(exec.out(), graph, 0)), cudaErrorInvalidValue);
}

TEST_F(BodyRules, AHandleHasNoFlagsButTheDefaultsOne) {
  cudaGraphConditionalHandle condition{};
  EXPECT_EQ(cudaGraphConditionalHandleCreate(&condition, graph, 0, 2), cudaErrorInvalidValue);
  static_cast<void>(cudaGetLastError());
}

}  // namespace
}  // namespace escrow::test
