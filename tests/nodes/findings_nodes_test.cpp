// Nodes that a plain call destroyed, handles that CUDA uses again, and what it costs to ask a graph
// for its handle before nodes are added.
#include <cstdint>
#include <escrow/nodes.hpp>
#include <escrow/sim.hpp>
#include <memory>
#include <vector>

#include "../graph/lifetime_fixture.hpp"

namespace escrow::test {
namespace {

class BuiltByHand : public lifetime_test {
 protected:
  static kernel tiny() { return kernel(kernel_address(kernel_id::tiny)); }
  static void add_owners(graph& to, int count) {
    for (int i = 0; i < count; ++i) build(to).add(host_node([kept = std::make_shared<int>(i)] {}));
  }
  [[nodiscard]] static std::uint64_t calls_of_instantiating(graph const& source) {
    auto const before = sim::calls();
    graph_exec const exec(source);
    return sim::calls() - before;
  }
};

TEST_F(BuiltByHand, AGraphWhoseNodeWasDestroyedByAPlainCallCanBeCloned) {
  watched_owner first;
  watched_owner second;
  {
    graph source(*worker);
    auto const kept = build(source).add(host_node([owner = first.owner()] {}));
    auto const destroyed = kept.add(host_node([owner = second.owner()] {}));
    must(cudaGraphDestroyNode(destroyed.get()));
    for (int i = 0; i < 2; ++i) {
      graph const copy = source.clone();
      EXPECT_EQ(node_count(copy.get()), 1u);
    }
    graph parent(*worker);
    EXPECT_NO_THROW(parent.add_child(source));
    graph_exec exec(source);
    exec.launch(two);
    sync(two);
    EXPECT_FALSE(first.is_gone());
  }
  EXPECT_TRUE(first.wait());
  EXPECT_TRUE(second.wait());
}

TEST_F(BuiltByHand, AnOwnerOfANodeWhoseHandleIsUsedAgainIsReleasedWithTheGraph) {
  watched_owner first;
  watched_owner second;
  {
    graph source(*worker);
    auto const destroyed = build(source).add(host_node([owner = first.owner()] {}));
    must(cudaGraphDestroyNode(destroyed.get()));
    static_cast<void>(build(source).add(host_node([owner = second.owner()] {})));
    graph_exec exec(source);
    source = graph();
    exec.launch(two);
    sync(two);
    EXPECT_FALSE(second.is_gone());
  }
  EXPECT_TRUE(first.wait());
  EXPECT_TRUE(second.wait());
}

TEST_F(BuiltByHand, AskingForTheHandleFirstMakesNoMoreUserObjects) {
  constexpr int nodes = 64;
  graph source(*worker);
  static_cast<void>(source.get());
  auto const before = sim::alive().user_objects;
  add_owners(source, nodes);
  static_cast<void>(source.get());
  EXPECT_LE(sim::alive().user_objects - before, 1u);
}

TEST_F(BuiltByHand, AskingForTheHandleFirstMakesInstantiatingNoDearer) {
  constexpr int nodes = 64;
  graph asked_first(*worker);
  static_cast<void>(asked_first.get());
  add_owners(asked_first, nodes);
  graph never_asked(*worker);
  add_owners(never_asked, nodes);
  // The first instantiation may put on the graph what its nodes keep; the second finds it there.
  EXPECT_LE(calls_of_instantiating(asked_first), calls_of_instantiating(never_asked) + 4);
  EXPECT_LE(calls_of_instantiating(asked_first), calls_of_instantiating(never_asked) + 4);
}

TEST_F(BuiltByHand, InstantiatingCallsCudaAsOftenWithManyOwnersAsWithFew) {
  graph few(*worker);
  add_owners(few, 1);
  for (int i = 1; i < 64; ++i) build(few).add(kernel_node(tiny(), {}));
  graph many(*worker);
  add_owners(many, 64);
  EXPECT_LE(calls_of_instantiating(many), calls_of_instantiating(few));
  EXPECT_LE(calls_of_instantiating(many), calls_of_instantiating(few));
}

// Nodes whose owners are shared and only read: plain CUDA runs the execs concurrently.
TEST_F(BuiltByHand, SharedOwnersOfNodesDoNotOrderTheExecsOfAGraph) {
  device_ints memory{2};
  std::shared_ptr<int const> const shared(memory.data(), [](int const*) {});
  graph source(*worker);
  build(source)
      .add(kernel_node(kernel(kernel_address(kernel_id::add)), {}, started(), 1))
      .add(kernel_node(kernel(kernel_address(kernel_id::wait_flag)), {}, flag.get()))
      .add(kernel_node(kernel(kernel_address(kernel_id::check)), {}, shared, std::size_t{1}, 0,
                       memory.data() + 1));
  graph_exec first(source);
  graph_exec second(source);
  first.launch(two);
  ASSERT_TRUE(have_started(1));
  second.launch(three);
  EXPECT_TRUE(have_started(2)) << "the second launch waits for the first";
  flag.raise();
  sync_all();
}

}  // namespace
}  // namespace escrow::test
