// Graphs with conditional nodes: what their bodies hold is held by the exec, and the exec is bare
// where the bodies were named.
#include <optional>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include "hoist_fixture.hpp"
#include "wait_until.hpp"

namespace escrow::test {
namespace {

// A conditional node whose condition has the same value at each launch.
struct node_kind {
  char const* name;
  cudaGraphConditionalNodeType type;
  unsigned value;
  unsigned bodies;
  int runs;  // how many of the bodies run at a launch

  friend void PrintTo(node_kind const& kind, std::ostream* out) { *out << kind.name; }
};

constexpr node_kind if_taken{"IfTaken", cudaGraphCondTypeIf, 1, 1, 1};
constexpr node_kind if_not_taken{"IfNotTaken", cudaGraphCondTypeIf, 0, 1, 0};
constexpr node_kind if_of_if_else{"IfOfIfElse", cudaGraphCondTypeIf, 1, 2, 1};
constexpr node_kind else_of_if_else{"ElseOfIfElse", cudaGraphCondTypeIf, 0, 2, 1};
constexpr node_kind while_never{"WhileNever", cudaGraphCondTypeWhile, 0, 1, 0};
constexpr node_kind switch_of_three{"SwitchOfThree", cudaGraphCondTypeSwitch, 2, 3, 1};
constexpr node_kind switch_to_none{"SwitchToNone", cudaGraphCondTypeSwitch, 7, 2, 0};

// Adds a node of that kind and returns its empty bodies.
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

// A graph with one conditional node, whose bodies were captured into: each has cargo of its own and
// adds 1 to the first cell.
struct conditional_graph {
  std::optional<graph> whole{std::in_place};
  std::vector<cudaGraph_t> bodies;
  std::vector<cargo> taken;
};

class Bodies : public hoist_test {
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

class BareBody : public Bodies, public testing::WithParamInterface<node_kind> {};

INSTANTIATE_TEST_SUITE_P(Kinds, BareBody,
                         testing::Values(if_taken, if_not_taken, if_of_if_else, else_of_if_else,
                                         while_never, switch_of_three, switch_to_none),
                         [](auto const& kind) { return std::string(kind.param.name); });

TEST_P(BareBody, ThatIsNamedLeavesTheExecBareAndHolding) {
  conditional_graph source = make(GetParam());
  std::optional<graph_exec> exec(std::in_place, *source.whole, naming(source.bodies));
  source.whole.reset();
  expect_all_kept(source);
  expect_bare_sole_holder(exec, source.taken.back());
  expect_all_back(source);
  EXPECT_EQ(cells.load(), 2 * GetParam().runs);
}

TEST_P(BareBody, ThatIsNotNamedLeavesTheExecRightButNotBare) {
  conditional_graph source = make(GetParam());
  std::optional<graph_exec> exec(*source.whole);
  EXPECT_FALSE(exec->is_bare());
  source.whole.reset();
  expect_all_kept(source);
  expect_sole_holder(exec, source.taken.back());
  expect_all_back(source);
  EXPECT_EQ(cells.load(), 2 * GetParam().runs);
}

TEST_P(BareBody, KeepsWhatItHoldsWhenTheExecGoesFirst) {
  conditional_graph source = make(GetParam());
  for (int i = 0; i < 3; ++i) {
    graph_exec exec(*source.whole, naming(source.bodies));
    exec.launch(two);
    sync(two);
  }
  for (cargo& each : source.taken) EXPECT_TRUE(stays_kept(each));
  source.whole.reset();
  expect_all_back(source);
  EXPECT_EQ(cells.load(), 3 * GetParam().runs);
}

TEST_P(BareBody, MayBeInstantiatedPlainlyAfterwards) {
  conditional_graph source = make(GetParam());
  { graph_exec const exec(*source.whole, naming(source.bodies)); }
  owned_exec plain = instantiate(source.whole->get());
  source.whole.reset();
  expect_all_kept(source);
  must(cudaGraphLaunch(plain, two));
  sync(two);
  plain.reset();
  expect_all_back(source);
}

TEST_F(Bodies, InFlightKeepWhatTheyHoldUntilTheLaunchIsDone) {
  cargo taken = make_cargo();
  std::optional<graph> source(std::in_place);
  std::vector<cudaGraph_t> const bodies = add_node(source->get(), if_taken);
  capture_into(bodies[0], [&](cudaStream_t stream) {
    must(launch_wait_flag(stream, flag.get()));
    load(taken, stream);
    must(launch_add(stream, cells.data(), 1));
  });
  std::optional<graph_exec> exec(std::in_place, *source, naming(bodies));
  EXPECT_TRUE(exec->is_bare());
  exec->launch(two);
  source.reset();
  EXPECT_TRUE(stays_kept(taken));
  {
    // On another thread, since it waits for the launch.
    std::jthread const ending([&] { exec.reset(); });
    EXPECT_TRUE(stays_false([&] { return taken.owner_is_gone(); }));
    EXPECT_EQ(cells.load(), 0);
    flag.raise();
  }
  EXPECT_EQ(cells.load(), 1);
  EXPECT_TRUE(comes_back(taken));
}

TEST_F(Bodies, OfOneNodeThatAreNotNamedLeaveTheExecRightButNotBare) {
  conditional_graph source = make(if_taken);
  std::vector<cudaGraph_t> const other = add_node(source.whole->get(), if_taken);
  cargo unnamed = make_cargo();
  fill_body(other[0], unnamed);
  std::optional<graph_exec> exec(std::in_place, *source.whole, naming(source.bodies));
  EXPECT_FALSE(exec->is_bare());
  source.whole.reset();
  EXPECT_TRUE(is_kept(unnamed));
  expect_sole_holder(exec, source.taken[0]);
  EXPECT_TRUE(comes_back(unnamed));
}

TEST_F(Bodies, OfWhichOneOfThreeIsNamedLeaveTheExecRight) {
  // That two were forgotten is more than Escrow can notice, and does no harm.
  conditional_graph source = make(switch_of_three);
  std::optional<graph_exec> exec(std::in_place, *source.whole, naming({source.bodies[1]}));
  source.whole.reset();
  expect_all_kept(source);
  expect_sole_holder(exec, source.taken[2]);
  expect_all_back(source);
}

TEST_F(Bodies, ThatAreNamedTwiceAreHeldOnce) {
  conditional_graph source = make(if_taken);
  std::optional<graph_exec> exec(std::in_place, *source.whole,
                                 naming({source.bodies[0], source.bodies[0]}));
  EXPECT_EQ(exec->held().slots, 1U);
  source.whole.reset();
  expect_bare_sole_holder(exec, source.taken[0]);
}

TEST_F(Bodies, InsideBodiesCountWhenTheyAreNamedToo) {
  conditional_graph source = make(if_taken);
  std::vector<cudaGraph_t> const inner = add_node(source.bodies[0], else_of_if_else);
  cargo of_inner = make_cargo();
  cargo of_else = make_cargo();
  fill_body(inner[0], of_inner);
  fill_body(inner[1], of_else);
  {
    graph_exec const partly(*source.whole, naming(source.bodies));
    EXPECT_FALSE(partly.is_bare()) << "the inner bodies were not named";
  }
  std::optional<graph_exec> exec(std::in_place, *source.whole,
                                 naming({source.bodies[0], inner[0], inner[1]}));
  source.whole.reset();
  EXPECT_TRUE(is_kept(of_inner));
  EXPECT_TRUE(is_kept(of_else));
  expect_bare_sole_holder(exec, source.taken[0]);
  EXPECT_TRUE(comes_back(of_inner));
  EXPECT_TRUE(comes_back(of_else));
  EXPECT_EQ(cells.load(), 4) << "the body and the inner else, twice";
}

TEST_F(Bodies, MayHaveChildGraphs) {
  cargo of_child = make_cargo();
  conditional_graph source = make(if_taken);
  {
    graph body(source.bodies[0]);
    body.add_child(captured(of_child));
    static_cast<void>(body.detach());
  }
  std::optional<graph_exec> exec(std::in_place, *source.whole, naming(source.bodies));
  source.whole.reset();
  EXPECT_TRUE(is_kept(of_child));
  expect_bare_sole_holder(exec, source.taken[0]);
  EXPECT_TRUE(comes_back(of_child));
  EXPECT_EQ(cells.load(), 4);
}

TEST_F(Bodies, MayBeBuiltByHandInAGraphOfTheCallers) {
  cargo taken = make_cargo();
  owned_graph source = make_graph();
  std::vector<cudaGraph_t> const bodies = add_node(source, if_taken);
  add_kernel(bodies[0], add_call(cells.data(), 1));
  cargo of_whole = make_cargo();
  load_owner_by_hand(taken, bodies[0]);
  load_owner_by_hand(of_whole, source);
  std::optional<graph_exec> exec(std::in_place, source.get(), naming(bodies));
  source.reset();
  EXPECT_TRUE(is_kept(of_whole));
  expect_bare_sole_holder(exec, taken);
  EXPECT_TRUE(comes_back(of_whole));
  EXPECT_EQ(cells.load(), 2);
}

TEST_F(Bodies, AreSwappedByAnUpdate) {
  conditional_graph first = make(if_taken);
  conditional_graph second = make(if_taken);
  std::optional<graph_exec> exec(std::in_place, *first.whole, naming(first.bodies));
  first.whole.reset();
  exec->launch(two);
  exec->update(*second.whole, second.bodies);
  EXPECT_TRUE(exec->is_bare());
  expect_all_back(first);
  second.whole.reset();
  expect_bare_sole_holder(exec, second.taken[0]);
  EXPECT_EQ(cells.load(), 3);
}

TEST_F(Bodies, ThatAnUpdateDoesNotNameAreHeldAllTheSame) {
  conditional_graph first = make(if_taken);
  conditional_graph second = make(if_taken);
  std::optional<graph_exec> exec(std::in_place, *first.whole, naming(first.bodies));
  first.whole.reset();
  exec->update(*second.whole);
  EXPECT_FALSE(exec->is_bare());
  expect_all_back(first);
  second.whole.reset();
  expect_sole_holder(exec, second.taken[0]);
}

TEST_F(Bodies, ASecondExecAtATimeIsAnErrorAndChangesNothing) {
  conditional_graph source = make(if_taken);
  std::optional<graph_exec> exec(std::in_place, *source.whole, naming(source.bodies));
  EXPECT_THROW(graph_exec(*source.whole, naming(source.bodies)), cuda_error);
  expect_all_kept(source);
  source.whole.reset();
  expect_bare_sole_holder(exec, source.taken[0]);
}

}  // namespace
}  // namespace escrow::test
