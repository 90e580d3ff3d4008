// One graph instantiated again and again, by Escrow and plainly, and handles that CUDA gives again.
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "hoist_fixture.hpp"

namespace escrow::test {
namespace {

class Reinstantiate : public hoist_test {};

TEST_F(Reinstantiate, ManyTimesHoldsOnAndGivesBackOnce) {
  cargo taken = make_cargo();
  {
    graph const source = captured(taken);
    for (int i = 0; i < 500; ++i) {
      graph_exec exec(source);
      ASSERT_TRUE(exec.is_bare()) << "round " << i;
      exec.launch(two);
    }
    sync(two);
    EXPECT_TRUE(stays_kept(taken));
  }
  EXPECT_TRUE(comes_back(taken));
  EXPECT_EQ(cells.load(), 500);
}

TEST_F(Reinstantiate, ManyExecsAtATimeHoldUntilTheLast) {
  cargo taken = make_cargo();
  std::vector<graph_exec> execs;
  {
    graph const source = captured(taken);
    for (int i = 0; i < 100; ++i) execs.emplace_back(source);
  }
  for (graph_exec& each : execs) each.launch(two);
  sync(two);
  while (execs.size() > 1) execs.pop_back();
  EXPECT_TRUE(stays_kept(taken));
  execs.clear();
  EXPECT_TRUE(comes_back(taken));
  EXPECT_EQ(cells.load(), 100);
}

TEST_F(Reinstantiate, PlainlyAfterAnExecOfOursKeepsEverything) {
  cargo taken = make_cargo();
  owned_exec plain;
  {
    graph const source = captured(taken);
    std::optional<graph_exec> ours(source);
    plain = instantiate(source.get());
  }
  EXPECT_TRUE(stays_kept(taken)) << "the references were not put back on the graph";
  must(cudaGraphLaunch(plain, two));
  sync(two);
  EXPECT_EQ(cells.load(), 1);
  plain.reset();
  EXPECT_TRUE(comes_back(taken));
}

TEST_F(Reinstantiate, PlainlyBeforeAnExecOfOursKeepsEverything) {
  cargo taken = make_cargo();
  owned_exec plain;
  {
    graph const source = captured(taken);
    plain = instantiate(source.get());
    graph_exec(source).launch(two);
    sync(two);
  }
  EXPECT_TRUE(stays_kept(taken));
  must(cudaGraphLaunch(plain, two));
  sync(two);
  EXPECT_EQ(cells.load(), 2);
  plain.reset();
  EXPECT_TRUE(comes_back(taken));
}

TEST_F(Reinstantiate, APlainExecInFlightKeepsEverythingAfterOursIsGone) {
  cargo taken = make_cargo();
  {
    graph const source = captured_behind_flag(taken);
    owned_exec const plain = instantiate(source.get());
    graph_exec const ours(source);
    must(cudaGraphLaunch(plain, two));
  }
  EXPECT_TRUE(stays_kept(taken));
  flag.raise();
  EXPECT_TRUE(comes_back(taken));
}

TEST_F(Reinstantiate, InTurnsWithPlainExecsAndClonesGivesBackOnlyAtTheEnd) {
  cargo taken = make_cargo();
  {
    graph const source = captured(taken);
    for (int i = 0; i < 50; ++i) {
      owned_exec const plain = instantiate(source.get());
      graph_exec ours(source);
      graph_exec of_copy(source.clone());
      must(cudaGraphLaunch(plain, two));
      ours.launch(two);
      of_copy.launch(two);
    }
    sync(two);
    EXPECT_TRUE(stays_kept(taken));
  }
  EXPECT_TRUE(comes_back(taken));
  EXPECT_EQ(cells.load(), 150);
}

TEST_F(Reinstantiate, FromAHandleThatWasAnotherGraphsHoldsNothingOfThatOne) {
  cargo of_old = make_cargo();
  std::optional<graph_exec> of_old_exec;
  std::set<cudaGraph_t> seen;
  {
    owned_graph old_graph = captured_plainly(of_old);
    seen.insert(old_graph);
    of_old_exec.emplace(old_graph.get());
  }
  // The old exec is alive, so the registry still has to do with what the handle once meant.
  bool reused = false;
  for (int i = 0; i < 2000 && !reused; ++i) {
    owned_graph const fresh = chain({add_call(cells.data(), 1)});
    reused = !seen.insert(fresh).second;
    graph_exec exec(fresh.get());
    EXPECT_EQ(exec.held().slots, 0U);
    EXPECT_EQ(exec.held().owners, 0U);
    exec.launch(two);
  }
  sync(two);
  EXPECT_TRUE(stays_kept(of_old));
  expect_bare_sole_holder(of_old_exec, of_old);
  if (!reused) GTEST_SKIP() << "no handle was given again";
}

TEST_F(Reinstantiate, FromAHandleThatWasAnotherGraphsHoldsItsOwn) {
  cargo of_old = make_cargo();
  std::optional<graph_exec> of_old_exec;
  cudaGraph_t old_handle = nullptr;
  {
    owned_graph old_graph = captured_plainly(of_old);
    old_handle = old_graph;
    of_old_exec.emplace(old_graph.get());
  }
  bool reused = false;
  cargo of_new = make_cargo();
  for (int i = 0; i < 200 && !reused; ++i) {
    of_new.fate = make_fate();
    owned_graph fresh = captured_plainly(of_new);
    reused = fresh.get() == old_handle;
    std::optional<graph_exec> exec(fresh.get());
    EXPECT_EQ(exec->held().slots, 1U);
    EXPECT_EQ(exec->held().owners, 1U);
    fresh.reset();
    exec->launch(two);
    EXPECT_FALSE(of_new.owner_is_gone());
    exec.reset();
    EXPECT_TRUE(comes_back(of_new)) << "it stays with the old graph's exec";
    EXPECT_FALSE(of_old.owner_is_gone());
  }
  EXPECT_TRUE(stays_kept(of_old));
  expect_bare_sole_holder(of_old_exec, of_old);
  if (!reused) GTEST_SKIP() << "no handle was given again";
}

}  // namespace
}  // namespace escrow::test
