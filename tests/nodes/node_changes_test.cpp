// SPDX-License-Identifier: Apache-2.0
// Nodes that are changed or destroyed: in the graph, for what is made of it from then on, or in one
// exec, for its launches from then on. Which owners are released then, and which are kept; and the
// order of execs that share owners.
#include "node_queries.hpp"
#include "nodes_world.hpp"

namespace escrow::test {
namespace {

template <class Kind>
class BuildChanges : public nodes_world {
 protected:
  node add_kind(graph_builder_ref const& at) { return Kind::add(things, at, 1); }
  void expect(graph_exec& exec, int way) {
    Kind::expect(
        things, [&] { run(exec); }, way);
  }
  changes_world things;
};

using kinds = testing::Types<of_launch, of_function, of_memset, of_memcpy, of_callable, of_record,
                             of_borrowed_event, of_wait>;
TYPED_TEST_SUITE(BuildChanges, kinds);

TYPED_TEST(BuildChanges, OfANodeConcernWhatIsMadeOfItsGraphFromThenOn) {
  node const made = this->add_kind(*this->built);
  graph_exec before(*this->built);
  graph const twin = this->built->clone();
  TypeParam::set(this->things, made, 2);
  EXPECT_EQ(nodes_in(*this->built).size(), 1U);
  graph_exec after(*this->built);
  graph_exec of_twin(twin);
  EXPECT_TRUE(after.is_bare());
  this->expect(before, 1);
  this->expect(after, 2);
  this->expect(of_twin, 1);
  before.update(*this->built);
  this->expect(before, 2);
}

TYPED_TEST(BuildChanges, OfAnExecConcernItAloneUntilAnUpdate) {
  node const made = this->add_kind(*this->built);
  graph_exec changed(*this->built);
  graph_exec other(*this->built);
  TypeParam::set(this->things, changed, made, 2);
  graph_exec later(*this->built);
  EXPECT_TRUE(changed.is_bare());
  this->expect(changed, 2);
  this->expect(other, 1);
  this->expect(later, 1);
  changed.update(*this->built);
  this->expect(changed, 1);
}

#ifdef ESCROW_TEST_RUNTIME_SIM  // where launches are audited by default
using NodeChangesThatNoExecHas = nodes_world;

TEST_F(NodeChangesThatNoExecHas, AreToldAtALaunchOnce) {
  node const added = add_to(*built, 0, 1);
  graph_exec exec(*built);
  exec.launch(one);
  added.set(kernel_node(add, {}, cells.data(), 10));
  EXPECT_EQ(errors->size(), 0U);
  for (int i = 0; i < 2; ++i) exec.launch(one);
  sync(one);
  EXPECT_EQ(cells.load(), 3);
  EXPECT_EQ(errors->size(), 1U);
  EXPECT_NE(errors->all().find("graph_exec::launch: the graph was changed after this exec was"),
            std::string::npos);
  exec.update(*built);
  exec.launch(one);
  sync(one);
  EXPECT_EQ(cells.load(), 13);
  EXPECT_EQ(errors->size(), 1U);
  errors_expected = true;
}

TEST_F(NodeChangesThatNoExecHas, AreNotToldIfAnExecGotThemOrIsToKeepWhatItHas) {
  node const added = add_to(*built, 0, 1);
  graph_exec exec(*built);
  added.set(kernel_node(add, {}, cells.data(), 10));
  set(exec, added, kernel_node(add, {}, cells.data(), 10));
  exec.launch(one);
  added.set(kernel_node(add, {}, cells.data(), 100));
  graph_exec const another(*built);
  exec.launch(one);
  sync(one);
  EXPECT_EQ(cells.load(), 20);
}
#endif

class BuildReadBack : public nodes_world {};

TEST_F(BuildReadBack, TellsWhatWasSetInTheGraphAndNotWhatInAnExec) {
  changes_world things;
  node const filled = of_memset::add(things, *built, 1);
  node const copied = of_memcpy::add(things, *built, 1);
  node const recorded = of_record::add(things, *built, 1);
  node const waited = of_wait::add(things, *built, 1);
  node const launched = of_function::add(things, *built, 1);
  auto const expect = [&](int way) {
    EXPECT_EQ(memset_params_of(filled).value, static_cast<unsigned>(way));
    EXPECT_EQ(memcpy_params_of(copied).srcPtr.ptr, things.source(way));
    EXPECT_EQ(event_of(recorded), things.event_of(way).get());
    EXPECT_EQ(event_of(waited), things.event_of(way).get());
    void const* const source = *static_cast<void**>(kernel_params_of(launched).kernelParams[1]);
    EXPECT_EQ(source, things.source(way));
  };
  auto const for_all = [&](auto const& set) {
    set(of_memset(), filled);
    set(of_memcpy(), copied);
    set(of_record(), recorded);
    set(of_wait(), waited);
    set(of_function(), launched);
  };
  graph_exec exec(*built);
  for_all([&](auto kind, node const& each) { kind.set(things, exec, each, 2); });
  expect(1);
  for_all([&](auto kind, node const& each) { kind.set(things, each, 2); });
  expect(2);
  launched.set(kernel_node(add, {.grid = {2}}, things.target.data(), 1));
  EXPECT_EQ(kernel_params_of(launched).func, kernel(add).get());
  EXPECT_EQ(kernel_params_of(launched).gridDim.x, 2U);
}

class NodeChanges : public nodes_world {
 protected:
  void set(node const& changed, fate_ptr const& fate, int value) {
    changed.set(kernel_node(add, {}, shared(fate), value));
  }
  void set(graph_exec& exec, node const& changed, fate_ptr const& fate, int value) {
    escrow::set(exec, changed, kernel_node(add, {}, shared(fate), value));
  }

  fate_ptr first = make_fate();
  fate_ptr second = make_fate();
  fate_ptr third = make_fate();
};

TEST_F(NodeChanges, DestroyingANodeReleasesItsOwnersAlone) {
  for (bool const is_handle_out : {false, true}) {
    fate_ptr const of_removed = make_fate();
    fate_ptr const of_other = make_fate();
    graph source(*worker);
    node const removed = add_owned(source, of_removed);
    node const other = add_owned(source, of_other);
    if (is_handle_out) static_cast<void>(source.get());
    removed.destroy();
    static_cast<void>(source.get());
    EXPECT_TRUE(is_released(of_removed));
    EXPECT_TRUE(is_kept(of_other));
    EXPECT_EQ(source.held().owners, 1U);
    other.destroy();
    static_cast<void>(source.get());
    EXPECT_TRUE(is_released(of_other));
    EXPECT_EQ(source.held().owners, 0U);
  }
}

TEST_F(NodeChanges, ExecsAndClonesThatWereMadeBeforeKeepTheOwnersOfADestroyedNode) {
  node const removed = add_owned(*built, first);
  std::optional<graph_exec> exec(*built);
  std::optional<graph> twin(built->clone());
  removed.destroy();
  run(*exec);
  EXPECT_EQ(cells.load(), 1);
  EXPECT_TRUE(is_kept(first));
  exec.reset();
  EXPECT_TRUE(is_kept(first));
  EXPECT_EQ(built->held().owners, 0U);
  EXPECT_TRUE(is_kept(first));
  sole_node(*twin).destroy();  // the clone's own
  EXPECT_EQ(twin->held().owners, 0U);
  EXPECT_TRUE(is_released(first));
}

TEST_F(NodeChanges, ChangingANodeSwapsItsOwnersForWhatIsMadeFromThenOn) {
  node const changed = add_owned(*built, first);
  std::optional<graph_exec> before(*built);
  set(changed, second, 10);
  std::optional<graph_exec> after(*built);
  run(*before);
  EXPECT_EQ(cells.load(), 1);
  run(*after);
  EXPECT_EQ(cells.load(), 11);
  EXPECT_TRUE(is_kept(first));
  before.reset();
  EXPECT_TRUE(is_released(first));
  EXPECT_TRUE(is_kept(second));
  built.reset();
  EXPECT_TRUE(is_kept(second));
  after.reset();
  EXPECT_TRUE(is_released(second));
}

TEST_F(NodeChanges, CallablesEventsFillsAndCopiesAreSwappedToo) {
  int calls = 0;
  auto const new_event = std::make_shared<event const>();
  node const called = build(*built).add(host_node([mine = std::make_shared<probe>(first)] {}));
  node const recorded = called.add(record_node(std::make_shared<event>()));
  node const filled = recorded.add(memset_node(shared(second), {.value = 1, .width = 1}));
  node const copied = filled.add(memcpy_node(shared(third, 1), cells.data(), sizeof(int)));
  graph_exec exec(*built);
  escrow::set(exec, called, host_node([&calls] { ++calls; }));
  escrow::set(exec, recorded, record_node(new_event));
  escrow::set(exec, filled, memset_node(cells.data(), {.value = 5, .width = 1}));
  escrow::set(exec, copied, memcpy_node(cells.data() + 1, cells.data(), sizeof(int)));
  EXPECT_EQ(exec.held().owners, 6U) << "the four of the graph, the callable and the event";
  called.set(host_node([] {}));
  filled.set(memset_node(cells.data(), {.value = 1, .width = 1}));
  copied.set(memcpy_node(cells.data() + 1, cells.data(), sizeof(int)));
  recorded.set(record_node(new_event->ref()));
  for (fate_ptr const& each : {first, second, third}) EXPECT_TRUE(is_kept(each));
  run(exec);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(cells.load(1), 5);
  exec.update(*built);
  for (fate_ptr const& each : {first, second, third}) EXPECT_TRUE(is_released(each));
  EXPECT_EQ(exec.held().owners, 1U) << "the callable";
}

TEST_F(NodeChanges, ACapturedCopyThatNamedItsKindIsSetInAnExec) {
  cells.store(0, 4);
  cells.store(1, 5);
  for (cudaMemcpyKind const kind : {cudaMemcpyHostToDevice, cudaMemcpyDefault}) {
    graph const source = captured([&](cudaStream_t on) {
      must(cudaMemcpyAsync(device.data(), cells.data(), sizeof(int), kind, on));
    });
    graph_exec exec(source);
    node const copied = sole_node(source);
    escrow::set(exec, copied, memcpy_node(device.data() + 1, cells.data() + 1, sizeof(int)));
    run(exec);
    EXPECT_EQ(device.read()[1], 5);
    auto const reversed = [&] {
      escrow::set(exec, copied, memcpy_node(cells.data() + 2, device.data() + 1, sizeof(int)));
    };
    if (kind != cudaMemcpyDefault)
      expect_error([&] { return reversed(), 0; }, cudaErrorInvalidValue);
    must(cudaMemset(device.data() + 1, 0, sizeof(int)));
    copied.set(memcpy_node(device.data() + 2, cells.data(), sizeof(int)));
    EXPECT_EQ(memcpy_params_of(copied).kind, kind);
    exec.update(source);
    run(exec);
    EXPECT_EQ(device.read()[2], 4);
  }
}

TEST_F(NodeChanges, WhatAnExecWasGivenIsReleasedAfterTheLaunchesInFlightWhenItIsGivenAnother) {
  node const changed = add_owned(hold_up_at(*built), first);
  std::optional<graph_exec> exec(*built);
  set(*exec, changed, second, 10);
  exec->launch(two);
  set(*exec, changed, third, 100);
  EXPECT_TRUE(stays_kept(second));
  flag.raise();
  sync(two);
  EXPECT_TRUE(is_released(second)) << "the exec is there, but does not use it any more";
  EXPECT_EQ(cells.load(), 10);
  built.reset();
  run(*exec);
  EXPECT_EQ(cells.load(), 110);
  EXPECT_TRUE(is_kept(first)) << "the exec got it from its graph";
  EXPECT_TRUE(is_kept(third));
  EXPECT_EQ(exec->held().owners, 2U);
  exec.reset();
  EXPECT_TRUE(is_released(first));
  EXPECT_TRUE(is_released(third));
}

TEST_F(NodeChanges, WhatAnExecWasGivenForANodeStaysWhenAnotherIsChanged) {
  node const one_node = add_owned(hold_up_at(*built), make_fate());
  node const other_node = add_owned(one_node, make_fate());
  std::optional<graph_exec> exec(*built);
  set(*exec, one_node, first, 10);
  set(*exec, other_node, second, 100);
  exec->launch(two);
  set(*exec, other_node, third, 1000);
  exec.reset();
  EXPECT_TRUE(stays_kept(first));
  EXPECT_TRUE(is_kept(second));
  flag.raise();
  sync(two);
  EXPECT_EQ(cells.load(), 110);
  for (fate_ptr const& each : {first, second, third}) EXPECT_TRUE(is_released(each));
}

TEST_F(NodeChanges, ExecsOfACapturedGraphMayBeGivenOwnersByAnyThread) {
  graph source = captured([&](cudaStream_t on) { must(launch_add(on, cells.data(), 1)); });
  std::optional<graph_exec> one_exec(source);
  graph_exec other_exec(source);
  EXPECT_EQ(one_exec->held().owners, 0U);
  node const changed = sole_node(source);
  std::thread other([&] { set(*one_exec, changed, first, 10); });
  set(other_exec, changed, second, 100);
  other.join();
  run(*one_exec);
  run(other_exec);
  EXPECT_EQ(cells.load(), 110);
  source = graph(*worker);
  EXPECT_TRUE(is_kept(first));
  one_exec.reset();
  EXPECT_TRUE(is_released(first));
}

// What a node owns alone may be written by a launch.
TEST_F(NodeChanges, DoNotKeepTheExecsOfAGraphFromBeingSerialized) {
  node const begun = add_to(*built, 1);
  node const removed = begun.add(host_node([mine = std::make_unique<probe>(first)] {}));
  hold_up_at(begun).add(host_node([mine = probe(second)] {}));
  graph_exec one_exec(*built);
  removed.destroy();
  graph_exec other_exec(*built);
  escrow::set(other_exec, begun, kernel_node(add, {}, shared(third, 1), 10));
  one_exec.launch(two);
  ASSERT_TRUE(have_started(1));
  other_exec.launch(three);
  EXPECT_TRUE(stays_false([&] { return cells.load(1) != 1; }));
  flag.raise();
  sync_all();
  EXPECT_EQ(cells.load(1), 11);
}

TEST_F(NodeChanges, WhatOneExecWasGivenDoesNotOrderItWithTheOthersOfItsGraph) {
  using unique = std::unique_ptr<int, void (*)(int*)>;
  int* const own = cells.data() + 3;
  node const filled = hold_up_at(add_to(*built, 1)).add(memset_node(own, {.width = 1}));
  graph_exec one_exec(*built);
  graph_exec other_exec(*built);
  escrow::set(one_exec, filled, memset_node(unique(own, [](int*) {}), {.width = 1}));
  escrow::set(other_exec, filled, memset_node(unique(own + 1, [](int*) {}), {.width = 1}));
  one_exec.launch(two);
  ASSERT_TRUE(have_started(1));
  other_exec.launch(three);
  EXPECT_TRUE(have_started(2)) << "the second launch waits for the first";
}

// What is shared is not ordered: the execs run concurrently, as with plain CUDA.
TEST_F(NodeChanges, SharedOwnersOfNodesDoNotOrderTheExecsOfAGraph) {
  node const begun = build(*built).add(kernel_node(add, {}, shared(first, 1), 1));
  hold_up_at(begun.add(record_node(std::make_shared<event>())));
  graph_exec one_exec(*built);
  graph_exec other_exec(*built);
  one_exec.launch(two);
  ASSERT_TRUE(have_started(1));
  other_exec.launch(three);
  EXPECT_TRUE(have_started(2)) << "the second launch waits for the first";
}

}  // namespace
}  // namespace escrow::test
