// Nodes that are added, changed or destroyed while a call or an allocation fails: all or nothing,
// nothing is lost, and nothing is freed too early.
#include <cstddef>
#include <memory>
#include <utility>

#include "each_failure.hpp"
#include "node_owners_fixture.hpp"

namespace escrow::test {
namespace {

// A graph with one node that has an owner, and another owner that is to take its place.
struct changing_world {
  explicit changing_world(pinned_ints& cells)
      : built(keeper),
        changed(built.launch(add, {}, owner(cells, before), 1)),
        mine(cells.data(), tells{after}) {}

  static std::shared_ptr<int> owner(pinned_ints& cells, fate_ptr const& fate) {
    return {cells.data(), tells{fate}};
  }
  [[nodiscard]] bool was_taken() const { return mine == nullptr; }
  // Lets the worker of nobody's do its work.
  void reclaim() {
    while (keeper.poll() != 0) {
    }
  }

  kernel const add{kernel_address(kernel_id::add)};
  fate_ptr before = make_fate();
  fate_ptr after = make_fate();
  // Polled by the test, so that each call has its fixed number.
  deleter keeper{deleter_options{.own_worker = false}};
  graph built;
  node changed;
  std::unique_ptr<int, tells> mine;
};

class NodeFault : public testing::Test {
 protected:
  // What a graph made of `of` adds to the first cell.
  int sum_of(graph const& of) {
    graph_exec exec(of);
    return sum_of(exec);
  }
  int sum_of(graph_exec& exec) {
    cells_.store(0, 0);
    exec.launch(stream_);
    must(cudaStreamSynchronize(stream_));
    return cells_.load();
  }
  // All that was there has gone, once.
  static void expect_all_gone(changing_world& world) {
    world.mine.reset();
    EXPECT_TRUE(world.keeper.drain_for(generous));
    EXPECT_EQ(world.before->times(), 1);
    EXPECT_EQ(world.after->times(), 1);
    EXPECT_EQ(world.keeper.stats().in_graphs, 0U);
    EXPECT_EQ(world.keeper.stats().held, 0U);
  }

  pinned_ints cells_{1};
  owned_stream stream_ = make_stream();
};

class EitherWay : public NodeFault, public testing::WithParamInterface<bool> {
 protected:
  // Before the handle was given away nothing is on the graph.
  static void expose_if_asked(graph const& built) {
    if (GetParam()) static_cast<void>(built.get());
  }
};

INSTANTIATE_TEST_SUITE_P(Handle, EitherWay, testing::Bool(),
                         [](auto const& out) { return out.param ? "IsOut" : "IsOurs"; });

TEST_P(EitherWay, ANodeIsAddedWithItsOwnersOrNotAtAll) {
  for_each_failure([this](std::uint64_t n, failure const& fail) {
    changing_world world(cells_);
    expose_if_asked(world.built);
    bool threw = false;
    bool const reached = fail(n, [&] {
      threw = throws([&] { world.built.launch(world.add, {}, std::move(world.mine), 10); });
    });
    EXPECT_EQ(world.was_taken(), !threw);
    world.reclaim();
    EXPECT_EQ(world.after->times(), 0);
    EXPECT_EQ(world.built.nodes().size(), threw ? 1U : 2U);
    EXPECT_EQ(world.built.held().owners, threw ? 1U : 2U);
    EXPECT_EQ(sum_of(world.built), threw ? 1 : 11);
    world.built = graph();
    expect_all_gone(world);
    return reached;
  });
}

TEST_P(EitherWay, ANodeIsChangedWithItsOwnersOrNotAtAll) {
  for_each_failure([this](std::uint64_t n, failure const& fail) {
    changing_world world(cells_);
    expose_if_asked(world.built);
    bool threw = false;
    bool const reached = fail(n, [&] {
      threw = throws([&] { world.changed.set_launch(world.add, {}, std::move(world.mine), 10); });
    });
    EXPECT_EQ(world.was_taken(), !threw);
    world.reclaim();
    EXPECT_EQ(world.before->times(), threw ? 0 : 1);
    EXPECT_EQ(world.after->times(), 0);
    EXPECT_EQ(world.built.held().owners, 1U);
    EXPECT_EQ(sum_of(world.built), threw ? 1 : 10);
    world.built = graph();
    expect_all_gone(world);
    return reached;
  });
}

TEST_P(EitherWay, ANodeIsDestroyedWithItsOwnersOrNotAtAll) {
  for_each_failure([this](std::uint64_t n, failure const& fail) {
    changing_world world(cells_);
    world.built.launch(world.add, {}, std::move(world.mine), 10);
    expose_if_asked(world.built);
    bool threw = false;
    bool const reached = fail(n, [&] { threw = throws([&] { world.changed.destroy(); }); });
    world.reclaim();
    EXPECT_EQ(world.before->times(), threw ? 0 : 1);
    EXPECT_EQ(world.after->times(), 0);
    EXPECT_EQ(world.built.nodes().size(), threw ? 2U : 1U);
    EXPECT_EQ(sum_of(world.built), threw ? 11 : 10);
    world.built = graph();
    expect_all_gone(world);
    return reached;
  });
}

TEST_P(EitherWay, AnExecIsChangedWithItsOwnersOrNotAtAll) {
  for_each_failure([this](std::uint64_t n, failure const& fail) {
    changing_world world(cells_);
    expose_if_asked(world.built);
    std::optional<graph_exec> exec(world.built);
    bool threw = false;
    bool const reached = fail(n, [&] {
      threw = throws(
          [&] { exec->set_launch(world.changed, world.add, {}, std::move(world.mine), 10); });
    });
    EXPECT_EQ(world.was_taken(), !threw);
    world.built = graph();
    world.reclaim();
    EXPECT_EQ(world.before->times(), threw ? 0 : 1);
    EXPECT_EQ(world.after->times(), 0);
    EXPECT_EQ(exec->held().owners, 1U);
    EXPECT_EQ(sum_of(*exec), threw ? 1 : 10);
    exec.reset();
    expect_all_gone(world);
    return reached;
  });
}

TEST_F(NodeFault, TheHandleIsGivenWithAllOwnersOnTheGraphOrNotAtAll) {
  for_each_failure([this](std::uint64_t n, failure const& fail) {
    changing_world world(cells_);
    world.built.launch(world.add, {}, std::move(world.mine), 10);
    cudaGraph_t handle = nullptr;
    bool threw = false;
    bool const reached = fail(n, [&] { threw = throws([&] { handle = world.built.get(); }); });
    EXPECT_EQ(handle == nullptr, threw);
    owned_exec exec;
    if (!threw) exec = instantiate(handle);
    world.built = graph();
    world.reclaim();
    EXPECT_EQ(world.before->times(), threw ? 1 : 0);
    EXPECT_EQ(world.after->times(), threw ? 1 : 0);
    exec.reset();
    expect_all_gone(world);
    return reached;
  });
}

TEST_F(NodeFault, ACloneHasAllOwnersOrThereIsNone) {
  for_each_failure([this](std::uint64_t n, failure const& fail) {
    changing_world world(cells_);
    world.built.launch(world.add, {}, std::move(world.mine), 10);
    std::optional<graph> copy;
    bool threw = false;
    bool const reached =
        fail(n, [&] { threw = throws([&] { copy.emplace(world.built.clone()); }); });
    EXPECT_EQ(copy.has_value(), !threw);
    world.built = graph();
    world.reclaim();
    EXPECT_EQ(world.before->times(), threw ? 1 : 0);
    if (copy) {
      EXPECT_EQ(sum_of(*copy), 11);
    }
    copy.reset();
    expect_all_gone(world);
    return reached;
  });
}

}  // namespace
}  // namespace escrow::test
