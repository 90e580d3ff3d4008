// What runs beside a kernel, behind edges that do not wait for its end; and that whatever comes
// behind a programmatic launch waits for the kernel in front of that, too.
#include <gtest/gtest.h>

#include "build_graph.hpp"
#include "conditional_nodes.hpp"
#include "early_edges.hpp"
#include "graph_nodes.hpp"
#include "handles.hpp"
#include "memory.hpp"
#include "wait_until.hpp"

namespace escrow::test {
namespace {

class BesideAKernel : public testing::Test {
 protected:
  void SetUp() override {
    int major = 0;
    must(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
    if (major < 9) GTEST_SKIP() << "this GPU launches nothing early";
  }

  void TearDown() override { flag.raise(); }  // the end of an exec may wait for its launch

  /// A kernel that waits for the flag, and one behind `edge`, which counts itself.
  cudaGraphNode_t add_pair(cudaGraph_t graph, cudaGraphEdgeData const& edge) {
    cudaGraphNode_t const waiting = add_kernel(graph, wait_flag_call(flag.get()));
    return add_beside(graph, waiting, edge);
  }
  cudaGraphNode_t add_beside(cudaGraph_t graph, cudaGraphNode_t waiting,
                             cudaGraphEdgeData const& edge) {
    cudaGraphNode_t beside = add_kernel(graph, add_call(early.data(), 1));
    must(cudaGraphAddDependencies(graph, &waiting, &beside, &edge, 1));
    return beside;
  }
  [[nodiscard]] kernel_call count_last() { return add_call(last.data(), 1); }

  void launch(cudaGraph_t graph) {
    exec = instantiate(graph);
    must(cudaGraphLaunch(exec, stream));
  }
  /// What `add_last` adds to a pair, and ends with count_last(), waits for both of the pair.
  template <class AddLast>
  void expect_last_waits(cudaGraphEdgeData const& edge, AddLast add_last) {
    owned_graph const graph = make_graph();
    cudaGraphNode_t const beside = add_pair(graph, edge);
    add_last(graph.get(), beside);
    launch(graph);
    expect_last_waits(1);
  }
  void expect_last_waits(int early_ones) {
    EXPECT_TRUE(wait_until([&] { return early.load(0) == early_ones; }));
    expect_waits();
  }
  void expect_waits() {
    EXPECT_TRUE(stays_false([&] { return last.load(0) != 0; }));
    flag.raise();
    must(cudaStreamSynchronize(stream));
    EXPECT_NE(last.load(0), 0);
  }

  pinned_ints early{1};
  pinned_ints last{1};
  device_ints filled{1};
  pinned_flag flag;
  owned_exec exec;
  owned_stream stream = make_stream();
};

TEST_F(BesideAKernel, RunsWhatIsBehindItsBeginning) {
  owned_graph const graph = make_graph();
  add_kernel(graph, count_last(), add_pair(graph, launch_completion_edge));
  launch(graph);
  EXPECT_TRUE(wait_until([&] { return early.load(0) == 1 && last.load(0) == 1; }));
  EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady);
  static_cast<void>(cudaGetLastError());
}

// Behind a programmatic launch: of either kind.
class BehindAProgrammaticLaunch : public BesideAKernel,
                                  public testing::WithParamInterface<cudaGraphEdgeData> {};

TEST_P(BehindAProgrammaticLaunch, AKernelWaitsForBoth) {
  expect_last_waits(GetParam(), [&](cudaGraph_t graph, cudaGraphNode_t beside) {
    add_kernel(graph, count_last(), beside);
  });
}

TEST_P(BehindAProgrammaticLaunch, WhatIsBehindAFillWaitsForBoth) {
  expect_last_waits(GetParam(), [&](cudaGraph_t graph, cudaGraphNode_t beside) {
    add_kernel(graph, count_last(), add_fill(graph, fill_params(filled.data(), 1, 4, 1), beside));
  });
}

TEST_P(BehindAProgrammaticLaunch, AHostFunctionWaitsForBoth) {
  expect_last_waits(GetParam(), [&](cudaGraph_t graph, cudaGraphNode_t beside) {
    cudaHostNodeParams const params{
        [](void* cell) { static_cast<pinned_ints*>(cell)->store(0, 1); }, &last};
    cudaGraphNode_t node = nullptr;
    must(cudaGraphAddHostNode(&node, graph, &beside, 1, &params));
  });
}

TEST_P(BehindAProgrammaticLaunch, WhatIsBehindAnEmptyNodeWaitsForBoth) {
  expect_last_waits(GetParam(), [&](cudaGraph_t graph, cudaGraphNode_t beside) {
    cudaGraphNode_t empty = nullptr;
    must(cudaGraphAddEmptyNode(&empty, graph, &beside, 1));
    add_kernel(graph, count_last(), empty);
  });
}

TEST_P(BehindAProgrammaticLaunch, AChildWaitsForBoth) {
  expect_last_waits(GetParam(), [&](cudaGraph_t graph, cudaGraphNode_t beside) {
    cudaGraphNode_t child = add_child(graph, chain({count_last()}));
    must(cudaGraphAddDependencies(graph, &beside, &child, nullptr, 1));
  });
}

TEST_P(BehindAProgrammaticLaunch, ABodyWaitsForBoth) {
  expect_last_waits(GetParam(), [&](cudaGraph_t graph, cudaGraphNode_t beside) {
    conditional_node const chosen =
        add_conditional_node(graph, make_condition(graph, 1), cudaGraphCondTypeIf, 1, beside);
    add_kernel(chosen.bodies.front(), count_last());
  });
}

TEST_P(BehindAProgrammaticLaunch, ALaunchOfTheSameKindLeadsToNoMore) {
  expect_last_waits(GetParam(), [&](cudaGraph_t graph, cudaGraphNode_t beside) {
    cudaGraphNode_t third = add_kernel(graph, tiny_call());
    must(cudaGraphAddDependencies(graph, &beside, &third, &GetParam(), 1));
    add_kernel(graph, count_last(), third);
  });
}

TEST_P(BehindAProgrammaticLaunch, WhatIsBehindEitherOfTwoWaits) {
  owned_graph const graph = make_graph();
  cudaGraphNode_t const waiting = add_kernel(graph, wait_flag_call(flag.get()));
  add_kernel(graph, count_last(), add_beside(graph, waiting, GetParam()));
  add_kernel(graph, count_last(), add_beside(graph, waiting, GetParam()));
  launch(graph);
  expect_last_waits(2);
  EXPECT_EQ(last.load(0), 2);
}

// Whether the launch itself is early then is CUDA's choice (an H200 waits).
TEST_P(BehindAProgrammaticLaunch, WhatIsBehindOneThatHasAnotherInFrontWaits) {
  owned_graph const graph = make_graph();
  cudaGraphNode_t beside = add_pair(graph, GetParam());
  cudaGraphNode_t const another = add_kernel(graph, tiny_call());
  must(cudaGraphAddDependencies(graph, &another, &beside, nullptr, 1));
  add_kernel(graph, count_last(), beside);
  launch(graph);
  expect_waits();
}

TEST_P(BehindAProgrammaticLaunch, WhatIsBehindTheChildThatHasBothWaits) {
  owned_graph const graph = make_graph();
  owned_graph const inner = make_graph();
  add_pair(inner, GetParam());
  add_kernel(graph, count_last(), add_child(graph, inner));
  launch(graph);
  expect_last_waits(1);
}

TEST_P(BehindAProgrammaticLaunch, WhatIsBehindTheBodyThatHasBothWaits) {
  owned_graph const graph = make_graph();
  conditional_node const chosen =
      add_conditional_node(graph, make_condition(graph, 1), cudaGraphCondTypeIf);
  add_pair(chosen.bodies.front(), GetParam());
  add_kernel(graph, count_last(), chosen.node);
  launch(graph);
  expect_last_waits(1);
}

INSTANTIATE_TEST_SUITE_P(Kinds, BehindAProgrammaticLaunch,
                         testing::Values(block_start_edge, trigger_edge), [](auto const& each) {
                           return each.param.from_port == trigger_edge.from_port ? "Trigger"
                                                                                 : "BlockStart";
                         });

}  // namespace
}  // namespace escrow::test
