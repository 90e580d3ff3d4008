// SPDX-License-Identifier: Apache-2.0
// Parts of a graph that use the same claims, as copies of one graph do, must be ordered by the
// graph's edges.
#include "cuda12.hpp"
#include "nodes_world.hpp"

namespace escrow::test {
namespace {

class SharedClaims : public nodes_world {
 protected:
  [[nodiscard]] graph claiming() {
    return captured([this](cudaStream_t on) { use(pool, on); });
  }
  static void expect_race(graph const& raced) {
    expect_refused([&] { return graph_exec(raced); }, "graph_exec::graph_exec",
                   "one capture claimed");
    EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  }
  /// Also that no uses overlap: the end of the test checks it.
  void expect_no_race(graph const& ordered) {
    graph_exec exec(ordered);
    for (int i = 0; i < 3; ++i) exec.launch(two);
    sync(two);
  }
  void TearDown() override {
    built.reset();
    EXPECT_TRUE(pool.close_for(generous).empty());
    nodes_world::TearDown();
  }

  block_pool pool = make_pool(8);
};

TEST_F(SharedClaims, OfTwoCopiesOfAGraphSideBySideAreRefused) {
  graph const child = claiming();
  graph const clone = child.clone();
  for (graph const* const other : {&child, &clone}) {
    graph raced(*worker);
    build(raced).add(child_node(child));
    build(raced).add(child_node(*other));
    expect_race(raced);
    expect_refused([&] { return hoist(raced); }, "hoist", "order them");
    graph_exec exec(child);
    expect_refused([&] { exec.update(raced); }, "graph_exec::update", "may run concurrently");
    EXPECT_EQ(child.held().slots, 1U);
  }
}

TEST_F(SharedClaims, OfCopiesInALineAreAllowed) {
  graph const child = claiming();
  graph chain(*worker);
  for (int i = 0; i < 3; ++i) chain.add_child(child);
  expect_no_race(chain);
  graph through(*worker);
  node const first = build(through).add(child_node(child));
  add_to(through, 1);
  node const between = add_to(first, 2);
  between.add(child_node(child.clone()));
  expect_no_race(through);
}

TEST_F(SharedClaims, AreFoundWhereverTheCopiesAre) {
  graph const child = claiming();
  graph middle(*worker);
  middle.add_child(child);
  graph raced(*worker);
  build(raced).add(child_node(child));
  build(raced).add(child_node(middle));
  expect_race(raced);
  graph outer(*worker);
  outer.add_child(raced);
  expect_race(outer);
  graph ordered(*worker);
  ordered.add_child(child);
  ordered.add_child(middle);
  expect_no_race(ordered);
  graph fork(*worker);
  node const begin = add_to(fork, 1);
  begin.add(child_node(child));
  add_to(begin, 2).add(child_node(child));
  expect_race(fork);
}

TEST_F(SharedClaims, OfAGraphAndItsOwnCloneInItAreRefusedUnlessItIsBeforeOrAfterAllElse) {
  graph raced = claiming();
  build(raced).add(child_node(raced.clone()));
  expect_race(raced);
  graph ordered = claiming();
  ordered.add_child(ordered.clone());
  ordered.add_child(ordered.clone());
  expect_no_race(ordered);
}

TEST_F(SharedClaims, OfWhatWasHoistedAreFoundToo) {
  graph const child = claiming();
  hoisted held = hoist(child);
  graph raced(*worker);
  for (int i = 0; i < 2; ++i) build(raced).add(child_node(child));
  expect_race(raced);
  graph ordered(*worker);
  for (int i = 0; i < 2; ++i) ordered.add_child(child);
  {
    graph_exec exec(ordered);
    held.launch(two, [&] { exec.launch(two); });
    sync(two);
  }
  held.release();
}

TEST_F(SharedClaims, OfCapturesOfTheSameWorkAreApart) {
  graph beside(*worker);
  for (int i = 0; i < 2; ++i) build(beside).add(child_node(claiming()));
  expect_no_race(beside);
}

TEST_F(SharedClaims, AreAlsoOwnersThatWereMovedIntoTheCapture) {
  fate_ptr const fate = make_fate();
  graph const retired = captured([&](cudaStream_t on) { retire(on, fate); });
  graph raced(*worker);
  for (int i = 0; i < 2; ++i) build(raced).add(child_node(retired));
  expect_refused([&] { return graph_exec(raced); }, "graph_exec::graph_exec", "std::shared_ptr");
  graph ordered(*worker);
  for (int i = 0; i < 2; ++i) ordered.add_child(retired);
  graph_exec const exec(ordered);
}

TEST_F(SharedClaims, AreNoOwnersOfNodesWhichMayBeOthersInTheNextCopy) {
  fate_ptr const first = make_fate();
  fate_ptr const second = make_fate();
  auto const adds = [this](fate_ptr const& fate) {
    return kernel_node(add, {}, std::unique_ptr<int, tells>(cells.data(), tells{fate}), 1);
  };
  graph made(*worker);
  node const changed = build(made).add(adds(first));
  graph beside(*worker);
  build(beside).add(child_node(made));
  changed.set(adds(second));
  build(beside).add(child_node(made));
  graph_exec const exec(beside);
}

TEST_F(SharedClaims, AreNoSharedOwnersAndNoKeptLeases) {
  fate_ptr const fate = make_fate();
  block_lease weights = pool.claim(one);
  graph child(*worker);
  capture_into(child.get(), [&](cudaStream_t on) { weights.record_stream(on); });
  build(child).add(kernel_node(add, {}, shared(fate), 1));
  graph beside(*worker);
  for (int i = 0; i < 2; ++i) build(beside).add(child_node(child));
  graph_exec const exec(beside);
}

TEST_F(SharedClaims, ThatAnExecsChildHasAlreadyAreRight) {
  graph const child = claiming();
  graph chain(*worker);
  node const first = build(chain).add(child_node(child));
  node const second = first.add(child_node(child));
  graph_exec exec(chain);
  escrow::set(exec, first, child_node(child));
  escrow::set(exec, second, child_node(child));
  exec.launch(two);
  sync(two);
}

TEST_F(SharedClaims, OfBodiesHaveThePlaceOfTheirConditionalNode) {
  graph const child = claiming();
  auto const branch_at = [&](graph& in, graph_builder_ref const& at) {
    return at.add(if_else_node(build(in).make_condition(1)));
  };
  graph one_of_two(*worker);
  conditional_node const choice = branch_at(one_of_two, one_of_two);
  choice.body().add(child_node(child));
  choice.otherwise().add(child_node(child));
  choice.add(child_node(child));
  graph_exec const allowed(one_of_two);

  graph raced(*worker);
  branch_at(raced, raced).body().add(child_node(child));
  build(raced).add(child_node(child));
  expect_race(raced);

  graph inside(*worker);
  conditional_node const loop = branch_at(inside, inside);
  for (int i = 0; i < 2; ++i) loop.body().add(child_node(child));
  expect_race(inside);
}

TEST_F(SharedClaims, OfAnExecsNewChildAreComparedWithTheOthers) {
  graph const first = claiming();
  graph const second = claiming();
  node const changed = build(*built).add(child_node(first));
  node const beside = build(*built).add(child_node(second));
  node const after = beside.add(child_node(claiming()));
  graph_exec exec(*built);
  escrow::set(exec, changed, child_node(first));
  expect_refused([&] { escrow::set(exec, changed, child_node(second)); }, "set",
                 "one capture claimed");
  expect_refused([&] { escrow::set(exec, after, child_node(second)); }, "set", "node::set");
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  // The graph has the first one there, and the exec another.
  escrow::set(exec, changed, child_node(claiming()));
  escrow::set(exec, beside, child_node(first));
  expect_refused([&] { escrow::set(exec, changed, child_node(first)); }, "set",
                 "one capture claimed");
  exec.launch(two);
  sync(two);
}

TEST_F(SharedClaims, OfAnExecAreThoseOfTheGraphThatItRuns) {
  graph const first = claiming();
  graph const second = claiming();
  graph const third = claiming();
  graph const empty = captured([](cudaStream_t on) { must(launch_tiny(on)); });
  auto const with = [this](graph const& one_child, graph const& other_child) {
    graph made(*worker);
    build(made).add(child_node(one_child));
    build(made).add(child_node(other_child));
    return made;
  };
  graph source(*worker);
  node const changed = build(source).add(child_node(first));
  node const beside = build(source).add(child_node(second));
  graph_exec exec(source);
  exec.update(with(third, claiming()));
  escrow::set(exec, changed, child_node(second));
  expect_refused([&] { escrow::set(exec, beside, child_node(second)); }, "set", "capture");
  escrow::set(exec, beside, child_node(first));
  // Its graph changes, and the exec does not.
  beside.set(child_node(third));
  expect_refused([&] { escrow::set(exec, changed, child_node(first)); }, "set", "capture");
  escrow::set(exec, changed, child_node(claiming()));
  hoisted held = hoist(second);
  escrow::set(exec, changed, child_node(second));
  expect_refused([&] { escrow::set(exec, beside, child_node(second)); }, "set", "capture");
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  held.release();
}

TEST_F(SharedClaims, BehindAKernelThatHasOnlyStartedAreBehindWhatThatWaitsFor) {
  graph const child = claiming();
  graph made(*worker);
  node const before = build(made).add(child_node(child));
  node const kernel_before = add_to(before, 1);
  node const kernel_behind = build(made).add(kernel_node(add, {}, cells.data(), 1));
  cudaGraphEdgeData early{};
  early.from_port = cudaGraphKernelNodePortLaunchCompletion;
  early.type = cudaGraphDependencyTypeProgrammatic;
  cudaGraphNode_t const from = kernel_before.get();
  cudaGraphNode_t const to = kernel_behind.get();
  must(cudaGraphAddDependencies(made.get(), &from, &to, &early, 1));
  kernel_behind.add(child_node(child));
  graph_exec const exec(made);
}

TEST_F(SharedClaims, InALongLineAreAllowed) {
  graph chain = claiming();
  graph const clone = chain.clone();
  constexpr int count = 1000;
  for (int i = 0; i < count; ++i) chain.add_child(clone);
  graph_exec const exec(chain);
}

}  // namespace
}  // namespace escrow::test
