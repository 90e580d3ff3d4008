// What the tests of graphs with conditional nodes share: one such node, whose bodies hold cargo.
#pragma once

#include <optional>
#include <ostream>
#include <vector>

#include "hoist_fixture.hpp"

namespace escrow::test {

/// A conditional node whose condition has the same value at each launch.
struct node_kind {
  char const* name;
  cudaGraphConditionalNodeType type;
  unsigned value;
  unsigned bodies;
  int runs;  // how many of the bodies run at a launch

  friend void PrintTo(node_kind const& kind, std::ostream* out) { *out << kind.name; }
};

inline constexpr node_kind if_taken{"IfTaken", cudaGraphCondTypeIf, 1, 1, 1};
inline constexpr node_kind if_not_taken{"IfNotTaken", cudaGraphCondTypeIf, 0, 1, 0};
inline constexpr node_kind if_of_if_else{"IfOfIfElse", cudaGraphCondTypeIf, 1, 2, 1};
inline constexpr node_kind else_of_if_else{"ElseOfIfElse", cudaGraphCondTypeIf, 0, 2, 1};
inline constexpr node_kind while_never{"WhileNever", cudaGraphCondTypeWhile, 0, 1, 0};
inline constexpr node_kind switch_of_three{"SwitchOfThree", cudaGraphCondTypeSwitch, 2, 3, 1};
inline constexpr node_kind switch_to_none{"SwitchToNone", cudaGraphCondTypeSwitch, 7, 2, 0};

/// Adds a node of that kind and returns its empty bodies.
inline std::vector<cudaGraph_t> add_node(cudaGraph_t graph, node_kind const& kind) {
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

/// A graph with one conditional node, whose bodies were captured into: each has cargo of its own
/// and adds 1 to the first cell.
struct conditional_graph {
  std::optional<graph> whole{std::in_place};
  std::vector<cudaGraph_t> bodies;
  std::vector<cargo> taken;
};

class bodies_test : public hoist_test {
 protected:
  [[nodiscard]] conditional_graph make(node_kind const& kind) {
    conditional_graph made;
    made.bodies = add_node(made.whole->get(), kind);
    for (cudaGraph_t const body : made.bodies) {
      made.taken.push_back(make_cargo());
      fill_body(body, made.taken.back());
    }
    return made;
  }
  void fill_body(cudaGraph_t body, cargo& taken) {
    capture_into(body, [&](cudaStream_t stream) {
      load(taken, stream);
      must(launch_add(stream, cells.data(), 1));
    });
  }
  [[nodiscard]] static instantiate_options naming(std::vector<cudaGraph_t> bodies) {
    instantiate_options result;
    result.bodies = std::move(bodies);
    return result;
  }
  void expect_all_kept(conditional_graph& source) {
    for (cargo& each : source.taken) EXPECT_TRUE(is_kept(each));
  }
  void expect_all_back(conditional_graph& source) {
    for (cargo& each : source.taken) EXPECT_TRUE(comes_back(each));
  }
};

}  // namespace escrow::test
