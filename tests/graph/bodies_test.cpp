// Bodies of conditional nodes in flight, named in part, nested, with children, and updated.
#include <optional>
#include <vector>

#include "bodies_fixture.hpp"
#include "wait_until.hpp"

namespace escrow::test {
namespace {

class Bodies : public bodies_test {};

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
