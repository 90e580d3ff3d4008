// Graphs with conditional nodes: which bodies run, what may be in them, and whose references an
// update lets go (cuda-facts.md, sections 1 and 3).
#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "build_graph.hpp"
#include "handles.hpp"
#include "memory.hpp"
#include "witness.hpp"

namespace escrow::test {
namespace {

struct node_kind {
  char const* name;
  cudaGraphConditionalNodeType type;
  unsigned value;
  unsigned bodies;
  int running;  // which body runs at a launch; -1: none

  friend void PrintTo(node_kind const& kind, std::ostream* out) { *out << kind.name; }
};

// Adds a conditional node whose condition has the same value at each launch; returns its bodies.
std::vector<cudaGraph_t> add_node(cudaGraph_t graph, node_kind const& kind) {
  cudaGraphConditionalHandle condition{};
  must(cudaGraphConditionalHandleCreate(&condition, graph, kind.value, cudaGraphCondAssignDefault));
  cudaGraphNodeParams params{};
  params.type = cudaGraphNodeTypeConditional;
  params.conditional.handle = condition;
  params.conditional.type = kind.type;
  params.conditional.size = kind.bodies;
  cudaGraphNode_t node = nullptr;
  must(cudaGraphAddNode(&node, graph, nullptr, nullptr, 0, &params));
  cudaGraph_t const* const made = params.conditional.phGraph_out;
  return {made, made + kind.bodies};
}

constexpr node_kind if_taken{"IfTaken", cudaGraphCondTypeIf, 1, 1, 0};
constexpr node_kind else_taken{"ElseTaken", cudaGraphCondTypeIf, 0, 2, 1};

class Conditional : public testing::Test {
 protected:
  void run(cudaGraph_t graph) {
    owned_exec const exec = instantiate(graph);
    must(cudaGraphLaunch(exec, stream));
    must(cudaStreamSynchronize(stream));
  }
  void capture_into(cudaGraph_t graph, int cell) {
    must(cudaStreamBeginCaptureToGraph(stream, graph, nullptr, nullptr, 0,
                                       cudaStreamCaptureModeRelaxed));
    must(launch_add(stream, cells.data() + cell, 1));
    cudaGraph_t ended = nullptr;
    must(cudaStreamEndCapture(stream, &ended));
    must(ended == graph, "the capture ended with the body");
  }

  pinned_ints cells{8};
  owned_stream stream = make_stream();
};

class ConditionalKind : public Conditional, public testing::WithParamInterface<node_kind> {};

INSTANTIATE_TEST_SUITE_P(
    Kinds, ConditionalKind,
    testing::Values(if_taken, node_kind{"IfNotTaken", cudaGraphCondTypeIf, 0, 1, -1},
                    node_kind{"IfOfIfElse", cudaGraphCondTypeIf, 5, 2, 0}, else_taken,
                    node_kind{"WhileNever", cudaGraphCondTypeWhile, 0, 1, -1},
                    node_kind{"SwitchToTheLast", cudaGraphCondTypeSwitch, 2, 3, 2},
                    node_kind{"SwitchToNone", cudaGraphCondTypeSwitch, 3, 3, -1}),
    [](auto const& kind) { return std::string(kind.param.name); });

TEST_P(ConditionalKind, RunsTheBodyThatItsValueChooses) {
  owned_graph const graph = make_graph();
  std::vector<cudaGraph_t> const bodies = add_node(graph, GetParam());
  for (std::size_t i = 0; i < bodies.size(); ++i) capture_into(bodies[i], static_cast<int>(i));
  run(graph);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(cells.load(static_cast<std::size_t>(i)), i == GetParam().running ? 1 : 0) << i;
  }
}

TEST_P(ConditionalKind, CarriesTheReferencesOfAllItsBodiesIntoTheExec) {
  owned_graph graph = make_graph();
  std::vector<cudaGraph_t> const bodies = add_node(graph, GetParam());
  std::vector<witness> seen(bodies.size());
  for (std::size_t i = 0; i < bodies.size(); ++i) {
    capture_into(bodies[i], static_cast<int>(i));
    seen[i].move_to(bodies[i]);
  }
  owned_exec exec = instantiate(graph);
  graph.reset();
  for (witness const& each : seen) EXPECT_FALSE(each.ran());
  exec.reset();
  for (witness const& each : seen) EXPECT_TRUE(each.wait());
}

TEST_F(Conditional, BodiesMayHaveConditionalNodesOfTheirOwn) {
  owned_graph const graph = make_graph();
  std::vector<cudaGraph_t> const outer = add_node(graph, if_taken);
  std::vector<cudaGraph_t> const inner = add_node(outer[0], else_taken);
  capture_into(inner[0], 0);
  capture_into(inner[1], 1);
  run(graph);
  EXPECT_EQ(cells.load(0), 0);
  EXPECT_EQ(cells.load(1), 1);
}

TEST_F(Conditional, BodiesMayHaveChildGraphs) {
  witness seen;
  owned_graph graph = make_graph();
  {
    owned_graph const child = chain({add_call(cells.data(), 1)});
    seen.move_to(child);
    add_child(add_node(graph, if_taken)[0], child);
  }
  run(graph);
  EXPECT_EQ(cells.load(), 1);
  EXPECT_FALSE(seen.ran());
  graph.reset();
  EXPECT_TRUE(seen.wait());
}

TEST_F(Conditional, AnUpdateSwapsTheWorkAndTheReferencesOfBodies) {
  witness of_old;
  witness of_new;
  owned_graph old_graph = make_graph();
  owned_graph new_graph = make_graph();
  cudaGraph_t const old_body = add_node(old_graph, if_taken)[0];
  cudaGraph_t const new_body = add_node(new_graph, if_taken)[0];
  capture_into(old_body, 0);
  capture_into(new_body, 1);
  of_old.move_to(old_body);
  of_new.move_to(new_body);
  owned_exec exec = instantiate(old_graph);
  old_graph.reset();
  EXPECT_FALSE(of_old.ran());
  cudaGraphExecUpdateResultInfo result{};
  ASSERT_EQ(cudaGraphExecUpdate(exec, new_graph, &result), cudaSuccess);
  EXPECT_TRUE(of_old.wait());
  new_graph.reset();
  must(cudaGraphLaunch(exec, stream));
  must(cudaStreamSynchronize(stream));
  EXPECT_FALSE(of_new.ran());
  EXPECT_EQ(cells.load(0), 0);
  EXPECT_EQ(cells.load(1), 1);
  exec.reset();
  EXPECT_TRUE(of_new.wait());
}

}  // namespace
}  // namespace escrow::test
