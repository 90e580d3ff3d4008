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
  condition const ours = build(built_).make_condition(1);
  conditional_node const made = build(built_).add(if_node(ours));
  node const inner = add_to(made.body(), 0, 1);
  node const none;
  for (node const& each : {theirs, inner, none}) {
    expect_refused([&] { static_cast<void>(made.join({each})); }, "graph_builder_ref::join",
                   "`others`");
    expect_refused(
        [&] {
          static_cast<void>(build(built_).join({made, each}));
        },
        "graph_builder_ref::join", "`others`");
    expect_refused([&] { made.after(each); }, "node::after", "`other`");
  }
  EXPECT_EQ(nodes_in(built_).size(), 1U);
  EXPECT_TRUE(edges_in(built_).empty());
}

TEST_F(BuildStrangers, ANodeWhoseGraphIsGoneIsRefusedAsAnother) {
  node const ours = add_to(built_, 0, 1);
  for (int i = 0; i < 4; ++i) {
    std::optional<graph> gone(std::in_place);
    node const stale = add_to(*gone, 0, 1);
    gone.reset();
    graph next;  // perhaps with the handle that the other had
    node const there = add_to(next, 0, 1);
    expect_refused([&] { static_cast<void>(build(next).join({stale})); }, "graph_builder_ref::join",
                   "`others`");
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
    constexpr char const* call = "set";
    int* const data = device_.data();
    expect_refused([&] { escrow::set(it, changed, kernel_node(add, {}, data, 1)); }, call, problem);
    expect_refused([&] { escrow::set(it, changed, kernel_node(kernel(add), {}, data, 1)); }, call,
                   problem);
    expect_refused([&] { escrow::set(it, changed, memset_node(data, zero)); }, call, problem);
    expect_refused([&] { escrow::set(it, changed, memcpy_node(data, data + 1, 4)); }, call,
                   problem);
    expect_refused([&] { escrow::set(it, changed, host_node([] {})); }, call, problem);
    expect_refused([&] { escrow::set(it, changed, host_node(nothing, nullptr, 0)); }, call,
                   problem);
    expect_refused([&] { escrow::set(it, changed, record_node(event)); }, call, problem);
    expect_refused([&] { escrow::set(it, changed, record_node(event.ref())); }, call, problem);
  };
  constexpr char const* not_of_it = "the node is not of the graph that the exec was created from";
  expect_all_refused(exec, theirs, not_of_it);
  expect_all_refused(exec, node(), not_of_it);
  expect_all_refused(of_handle, ours, not_of_it);
  expect_all_refused(of_twin, ours, not_of_it);
  graph_exec moved_to = std::move(exec);
  expect_all_refused(exec, ours, "moved from");  // NOLINT(bugprone-use-after-move)
  escrow::set(moved_to, ours, kernel_node(add, {}, cells_.data(), 2));
  built_ = graph();
  expect_all_refused(moved_to, ours, not_of_it);
  run(moved_to);
  EXPECT_EQ(cells_.load(), 2);
}

class BuildGone : public BuildStrangers {
 protected:
  static constexpr char const* is_gone = "the graph was destroyed, moved from or detached";

  // Expects that nothing can be added at the place.
  void expect_no_place(graph_builder_ref const& at) {
    int* const data = device_.data();
    graph const child;
    auto const expect = [](auto call, char const* name) { expect_refused(call, name, is_gone); };
    expect([&] { static_cast<void>(at.join()); }, "graph_builder_ref::join");
    expect([&] { at.add(kernel_node(add, {}, data, 1)); }, "graph_builder_ref::add");
    expect([&] { at.add(kernel_node(kernel(add), {}, data, 1)); }, "graph_builder_ref::add");
    expect([&] { static_cast<void>(at.add(alloc_node(4))); }, "graph_builder_ref::add");
    expect([&] { at.add(free_node(data)); }, "graph_builder_ref::add");
    expect([&] { at.add(memset_node(data, zero)); }, "graph_builder_ref::add");
    expect([&] { at.add(memcpy_node(data, data + 1, 4)); }, "graph_builder_ref::add");
    expect([&] { static_cast<void>(at.add(child_node(child))); }, "graph_builder_ref::add");
    expect([&] { at.add(host_node([] {})); }, "graph_builder_ref::add");
    expect([&] { at.add(host_node(nothing, nullptr, 0)); }, "graph_builder_ref::add");
    expect([&] { at.add(record_node(event)); }, "graph_builder_ref::add");
    expect([&] { at.add(record_node(event.ref())); }, "graph_builder_ref::add");
    expect([&] { at.add(wait_node(event)); }, "graph_builder_ref::add");
    expect([&] { at.add(wait_node(event.ref())); }, "graph_builder_ref::add");
    expect([&] { static_cast<void>(at.make_condition(0)); }, "graph_builder_ref::make_condition");
  }
  // The same, and that the node is not changed.
  void expect_no_node(node const& it) {
    int* const data = device_.data();
    auto const expect = [](auto call, char const* name) { expect_refused(call, name, is_gone); };
    expect_no_place(it);
    expect([&] { it.after(it); }, "node::after");
    expect([&] { it.set(kernel_node(add, {}, data, 1)); }, "node::set");
    expect([&] { it.set(memset_node(data, zero)); }, "node::set");
    expect([&] { it.set(memcpy_node(data, data + 1, 4)); }, "node::set");
    expect([&] { it.set(host_node([] {})); }, "node::set");
    expect([&] { it.set(host_node(nothing, nullptr, 0)); }, "node::set");
    expect([&] { it.set(record_node(event)); }, "node::set");
    expect([&] { it.set(record_node(event.ref())); }, "node::set");
    expect([&] { it.destroy(); }, "node::destroy");
  }
};

TEST_F(BuildGone, APlaceInNoGraphIsNone) {
  expect_no_place(graph_builder_ref());
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
  condition const always = build(built_).make_condition(1);
  graph moved_to = std::move(built_);
  // NOLINTBEGIN(bugprone-use-after-move): that is the question
  expect_no_place(built_);
  EXPECT_EQ(built_.get(), nullptr);
  graph around;
  expect_refused([&] { static_cast<void>(build(around).add(child_node(built_))); },
                 "graph_builder_ref::add", is_gone);
  expect_refused([&] { static_cast<void>(built_.clone()); }, "graph::clone", is_gone);
  expect_refused([&] { built_.write_dot("/nowhere"); }, "graph::write_dot", is_gone);
  // NOLINTEND(bugprone-use-after-move)
  made.set(kernel_node(add, {}, cells_.data(), 2));
  add_to(made.add(if_node(always)).body(), 0, 3);
  EXPECT_EQ(nodes_in(moved_to).size(), 2U);
  run(moved_to);
  EXPECT_EQ(cells_.load(), 5);
}

TEST_F(BuildGone, AGraphThatWasAssignedOverIsGoneAndTheOneAssignedIsThere) {
  graph other;
  node const of_old = add_to(built_, 0, 1);
  node const of_new = add_to(other, 1, 1);
  built_ = std::move(other);
  expect_no_node(of_old);
  EXPECT_EQ(type_of(of_new), cudaGraphNodeTypeKernel);
  EXPECT_EQ(nodes_in(built_).at(0), of_new);
}

}  // namespace
}  // namespace escrow::test
