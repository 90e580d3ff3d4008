// Nodes where they do not belong: of another graph, or of one that ended, or was moved from or
// detached.
#include <optional>
#include <string>
#include <utility>

#include "build_fixture.hpp"
#include "handles.hpp"

namespace escrow::test {
namespace {

class BuildStrangers : public build_test {
 protected:
  void TearDown() override { EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess); }

  memset_config const zero{.width = 1};
  cudaHostFn_t const nothing = [](void*) noexcept {};
  shared_event const event = shared_event::make();
};

TEST_F(BuildStrangers, ANodeOfAnotherGraphOrBodyIsRefused) {
  graph other;
  node const theirs = add_to(other, 0, 1);
  condition const ours = built_.make_condition(1);
  conditional_node const made = built_.if_then(ours);
  node const inner = add_to(made.body(), 0, 1);
  node const none;
  for (node const& each : {theirs, inner, none}) {
    expect_refused([&] { static_cast<void>(made.join({each})); }, "node::join", "`others`");
    expect_refused([&] { static_cast<void>(built_.join({made, each})); }, "node::join", "`others`");
    expect_refused([&] { made.after(each); }, "node::after", "`other`");
  }
  EXPECT_EQ(built_.nodes().size(), 1U);
  EXPECT_TRUE(built_.edges().empty());
}

TEST_F(BuildStrangers, ANodeWhoseGraphIsGoneIsRefusedAsAnother) {
  node const ours = add_to(built_, 0, 1);
  for (int i = 0; i < 4; ++i) {
    std::optional<graph> gone(std::in_place);
    node const stale = add_to(*gone, 0, 1);
    gone.reset();
    graph next;  // perhaps with the handle that the other had
    node const there = add_to(next, 0, 1);
    expect_refused([&] { static_cast<void>(next.join({stale})); }, "node::join", "`others`");
    expect_refused([&] { there.after(stale); }, "node::after", "`other`");
    expect_refused([&] { ours.after(stale); }, "node::after", "`other`");
  }
}

TEST_F(BuildStrangers, AnExecTakesOnlyNodesOfTheGraphThatItWasMadeOf) {
  graph other;
  node const theirs = add_to(other, 0, 1);
  node const ours = add_to(built_, 0, 1);
  graph const twin = built_.clone();
  graph_exec exec(built_);
  graph_exec of_handle(built_.get());
  graph_exec of_twin(twin);
  auto const expect_all_refused = [&](graph_exec& it, node const& changed, char const* problem) {
    constexpr char const* call = "graph_exec::set";
    int* const data = device_.data();
    expect_refused([&] { it.set_launch(changed, add, {}, data, 1); }, call, problem);
    expect_refused([&] { it.set_launch(changed, kernel(add), {}, data, 1); }, call, problem);
    expect_refused([&] { it.set_memset(changed, data, zero); }, call, problem);
    expect_refused([&] { it.set_memcpy(changed, data, data + 1, 4); }, call, problem);
    expect_refused([&] { it.set_call(changed, [] {}); }, call, problem);
    expect_refused([&] { it.set_call(changed, nothing, nullptr, 0); }, call, problem);
    expect_refused([&] { it.set_event(changed, event); }, call, problem);
    expect_refused([&] { it.set_event(changed, event.ref()); }, call, problem);
  };
  constexpr char const* not_of_it = "the node is not of the graph that the exec was made of";
  expect_all_refused(exec, theirs, not_of_it);
  expect_all_refused(exec, node(), not_of_it);
  expect_all_refused(of_handle, ours, not_of_it);
  expect_all_refused(of_twin, ours, not_of_it);
  graph_exec moved_to = std::move(exec);
  expect_all_refused(exec, ours, "moved from");  // NOLINT(bugprone-use-after-move)
  moved_to.set_launch(ours, add, {}, cells_.data(), 2);
  built_ = graph();
  expect_all_refused(moved_to, ours, not_of_it);
  run(moved_to);
  EXPECT_EQ(cells_.load(), 2);
}

class BuildGone : public BuildStrangers {
 protected:
  static constexpr char const* is_gone =
      "the graph is gone: it ended, or was moved from or detached";

  // Expects that nothing can be added at the place.
  void expect_no_place(insertion_point const& at) {
    int* const data = device_.data();
    graph const child;
    auto const expect = [](auto call, char const* name) { expect_refused(call, name, is_gone); };
    expect([&] { static_cast<void>(at.join()); }, "node::join");
    expect([&] { at.launch(add, {}, data, 1); }, "node::launch");
    expect([&] { at.launch(kernel(add), {}, data, 1); }, "node::launch");
    expect([&] { static_cast<void>(at.alloc(4)); }, "node::alloc");
    expect([&] { at.free(data); }, "node::free");
    expect([&] { at.memset(data, zero); }, "node::memset");
    expect([&] { at.memcpy(data, data + 1, 4); }, "node::memcpy");
    expect([&] { static_cast<void>(at.embed(child)); }, "node::embed");
    expect([&] { at.call([] {}); }, "node::call");
    expect([&] { at.call(nothing, nullptr, 0); }, "node::call");
    expect([&] { at.record(event); }, "node::record");
    expect([&] { at.record(event.ref()); }, "node::record");
    expect([&] { at.wait(event); }, "node::wait");
    expect([&] { at.wait(event.ref()); }, "node::wait");
    expect([&] { static_cast<void>(at.make_condition(0)); }, "node::make_condition");
  }
  // The same, and that the node tells nothing and is not changed.
  void expect_no_node(node const& it) {
    int* const data = device_.data();
    auto const expect = [](auto call, char const* name) { expect_refused(call, name, is_gone); };
    expect_no_place(it);
    expect([&] { static_cast<void>(it.type()); }, "node::type");
    expect([&] { static_cast<void>(it.predecessors()); }, "node::predecessors");
    expect([&] { static_cast<void>(it.successors()); }, "node::successors");
    expect([&] { it.after(it); }, "node::after");
    expect([&] { static_cast<void>(it.launch_parameters()); }, "node::launch_parameters");
    expect([&] { static_cast<void>(it.memset_parameters()); }, "node::memset_parameters");
    expect([&] { static_cast<void>(it.memcpy_parameters()); }, "node::memcpy_parameters");
    expect([&] { static_cast<void>(it.call_parameters()); }, "node::call_parameters");
    expect([&] { static_cast<void>(it.event()); }, "node::type");
    expect([&] { static_cast<void>(it.alloc_parameters()); }, "node::alloc_parameters");
    expect([&] { static_cast<void>(it.freed()); }, "node::freed");
    expect([&] { static_cast<void>(it.embedded()); }, "node::embedded");
    expect([&] { it.set_launch(add, {}, data, 1); }, "node::set_launch");
    expect([&] { it.set_memset(data, zero); }, "node::set_memset");
    expect([&] { it.set_memcpy(data, data + 1, 4); }, "node::set_memcpy");
    expect([&] { it.set_call([] {}); }, "node::set_call");
    expect([&] { it.set_call(nothing, nullptr, 0); }, "node::set_call");
    expect([&] { it.set_event(event); }, "node::");
    expect([&] { it.set_event(event.ref()); }, "node::");
    expect([&] { it.destroy(); }, "node::destroy");
  }
};

TEST_F(BuildGone, APlaceInNoGraphIsNone) {
  expect_no_place(insertion_point());
  expect_no_node(node());
  EXPECT_EQ(node().get(), nullptr);
}

TEST_F(BuildGone, ANodeOfAGraphThatEndedIsNone) {
  node const made = add_to(built_, 0, 1);
  built_ = graph();
  expect_no_node(made);
}

TEST_F(BuildGone, ANodeOfAGraphThatWasDetachedIsNone) {
  node const made = add_to(built_, 0, 1);
  owned_graph const detached(built_.detach());
  ASSERT_NE(detached.get(), nullptr);
  EXPECT_EQ(built_.get(), nullptr);
  expect_no_node(made);
  expect_no_place(built_);
}

TEST_F(BuildGone, AGraphThatWasMovedFromIsNoPlaceAndItsNodesAreTheOthers) {
  node const made = add_to(built_, 0, 1);
  condition const always = built_.make_condition(1);
  graph moved_to = std::move(built_);
  // NOLINTBEGIN(bugprone-use-after-move): that is the question
  expect_no_place(built_);
  EXPECT_EQ(built_.get(), nullptr);
  graph around;
  expect_refused([&] { static_cast<void>(around.embed(built_)); }, "node::embed", is_gone);
  expect_refused([&] { static_cast<void>(built_.clone()); }, "graph::clone", is_gone);
  expect_refused([&] { static_cast<void>(built_.nodes()); }, "graph::nodes", is_gone);
  expect_refused([&] { static_cast<void>(built_.edges()); }, "graph::edges", is_gone);
  expect_refused([&] { built_.write_dot("/nowhere"); }, "graph::write_dot", is_gone);
  // NOLINTEND(bugprone-use-after-move)
  made.set_launch(add, {}, cells_.data(), 2);
  add_to(made.if_then(always).body(), 0, 3);
  EXPECT_EQ(moved_to.nodes().size(), 2U);
  run(moved_to);
  EXPECT_EQ(cells_.load(), 5);
}

TEST_F(BuildGone, AGraphThatWasAssignedOverIsGoneAndTheOneAssignedIsThere) {
  graph other;
  node const of_old = add_to(built_, 0, 1);
  node const of_new = add_to(other, 1, 1);
  built_ = std::move(other);
  expect_no_node(of_old);
  EXPECT_EQ(of_new.type(), cudaGraphNodeTypeKernel);
  EXPECT_EQ(built_.nodes().at(0), of_new);
}

}  // namespace
}  // namespace escrow::test
