// An exec that says that it is bare has no user object, whatever failed before.
#include <escrow/nodes.hpp>

#include "exec_fault_world.hpp"
#include "node_queries.hpp"

namespace escrow::test {
namespace {

constexpr std::uint64_t attempts = 3;  // of a call that gives something back

class BareClaim : public testing::Test {
 protected:
  void TearDown() override {
    sim::clear_faults();
    world.end_execs();
    world.end_copies();
    world.source.reset();
    world.flag.raise();
    world.pool.reset();
    EXPECT_TRUE(world.settle());
  }

  // Ends all graphs, so that the exec alone keeps user objects alive, and asks it.
  void expect_the_truth() {
    bool const claims = world.exec->is_bare();
    world.end_copies();
    world.source.reset();
    EXPECT_TRUE(world.settle());
    EXPECT_LE(claims, sim::alive().user_objects == 0) << "it is not bare";
  }

  // CUDA takes no node off the parent from now on.
  void add_memory() {
    allocation const memory = build(*world.parent).add(alloc_node(64));
    memory.add(free_node(memory.address()));
  }

  exec_world world;
};

TEST_F(BareClaim, IsRightOfAnExecOfAGraph) {
  world.exec.emplace(*world.source);
  EXPECT_TRUE(world.exec->is_bare());
  expect_the_truth();
}

// A set that cannot be taken off the graph is an error, and the graph keeps it.
TEST_F(BareClaim, IsNotMadeIfASetCannotBeTakenOffTheGraph) {
  sim::fail_call_here("cudaGraphReleaseUserObject", cudaErrorUnknown, 1, attempts);
  EXPECT_THROW(world.exec.emplace(*world.source), cuda_error);
  sim::clear_faults();
  world.exec.emplace(*world.source);
  EXPECT_TRUE(world.exec->is_bare());
  expect_the_truth();
}

// What is_bare() says then is not promised; what the exec keeps alive is.
TEST_F(BareClaim, DoesNotMatterToAChildBesideMemoryThatCouldNotBeNoted) {
  world.parent.emplace();
  add_memory();
  sim::fail_call_here("cudaGraphChildGraphNodeGetGraph", cudaErrorUnknown);
  world.parent->add_child(*world.source);
  sim::clear_faults();
  EXPECT_EQ(nodes_in(*world.parent).size(), 3U);
  world.exec.emplace(*world.parent);
  world.end_copies();
  world.source.reset();
  EXPECT_TRUE(world.settle());
  EXPECT_EQ(world.owners[0].times(), 0);
  world.exec.reset();
  EXPECT_TRUE(wait_until([&] { return world.settle() && world.owners[0].is_gone(); }));
}

TEST_F(BareClaim, AChildOfWhichNobodyCouldNoteWhatItHoldsIsTakenOff) {
  world.parent.emplace();
  sim::fail_call_here("cudaGraphChildGraphNodeGetGraph", cudaErrorUnknown);
  EXPECT_THROW(world.parent->add_child(*world.source), cuda_error);
  EXPECT_TRUE(nodes_in(*world.parent).empty());
  world.exec.emplace(*world.parent);
  EXPECT_TRUE(world.exec->is_bare());
  expect_the_truth();
}

TEST_F(BareClaim, IsNotChangedByAnUpdateIfASetCannotBeTakenOff) {
  world.second.emplace(world.captured(2));
  world.exec.emplace(*world.source);
  sim::fail_call_here("cudaGraphReleaseUserObject", cudaErrorUnknown, 1, attempts);
  EXPECT_THROW(world.exec->update(*world.second), cuda_error);
  EXPECT_TRUE(world.exec->is_bare());
  world.second.reset();
  expect_the_truth();
}

// What is_bare() says of such a copy is not promised; what its exec keeps alive is.
TEST_F(BareClaim, DoesNotMatterToWhatAnExecOfAPlainCopyThatGotMoreByItselfKeeps) {
  world.plain = test::clone(world.source->get());
  world.owners.emplace_back();
  world.worker->retire(world.plain.get(), world.owners.back().owner());
  world.exec.emplace(world.plain.get());
  world.end_copies();
  world.source.reset();
  EXPECT_TRUE(world.settle());
  EXPECT_EQ(world.owners[0].times() + world.owners[1].times(), 0);
  EXPECT_EQ(world.pool->stats().in_graphs, exec_world::slots_of_graph);
  world.exec.reset();
  EXPECT_TRUE(wait_until(
      [&] { return world.settle() && world.owners[0].is_gone() && world.owners[1].is_gone(); }));
}

}  // namespace
}  // namespace escrow::test
