// Launches of a sharing group's graphs by the caller's own code, between enter() and leave().
#include <atomic>
#include <string>
#include <thread>
#include <utility>

#include "sharing_world.hpp"

namespace escrow::test {
namespace {

class GroupTurn : public sharing_world {
 protected:
  // A graph of the group with a plain exec.
  struct plain {
    explicit plain(graph&& of)
        : source(std::move(of)), held(hoist(source)), exec(instantiate(source.get())) {}
    graph source;
    hoisted held;
    owned_exec exec;
  };
  static void launch_in_turn(plain& each, cudaStream_t stream) {
    each.held.enter(stream);
    must(cudaGraphLaunch(each.exec, stream));
    each.held.leave(stream);
  }
  static void end(plain& each) {
    each.exec.reset();
    each.held.release();
  }
};

TEST_F(GroupTurn, IsOrderedWithTheLaunchesOfExecs) {
  plain first(captured_behind_flag([&](cudaStream_t on) { use(*pool, on); }));
  graph_exec second(captured_use_of(*pool));
  plain third(captured_use_of(*pool));
  launch_in_turn(first, three);
  second.launch(one);
  launch_in_turn(third, two);
  expect_behind_flag(two);
  EXPECT_EQ(group.stats().stream_waits, 2U);
  EXPECT_EQ(group.stats().launches, 3U);
  end(first);
  end(third);
}

TEST_F(GroupTurn, OrdersTwoExecsOfOneGraph) {
  plain first(captured_behind_flag([&](cudaStream_t on) { use(*pool, on); }));
  owned_exec const second = instantiate(first.source.get());
  launch_in_turn(first, three);
  first.held.enter(two);
  must(cudaGraphLaunch(second, two));
  first.held.leave(two);
  expect_behind_flag(two);
  for (int i = 0; i < 3; ++i) launch_in_turn(first, two);
  EXPECT_EQ(group.stats().stream_waits, 1U);
  end(first);
}

TEST_F(GroupTurn, MakesOthersWaitOnTheHostUntilItsEnd) {
  plain first(captured_use_of(*pool));
  graph_exec second(captured_use_of(*pool));
  plain third(captured_use_of(*pool));
  first.held.enter(two);
  std::atomic<int> launched{0};
  std::jthread exec_thread([&] {
    second.launch(three);
    ++launched;
  });
  std::jthread plain_thread([&] {
    launch_in_turn(third, one);
    ++launched;
  });
  EXPECT_TRUE(stays_false([&] { return launched != 0; }));
  must(cudaGraphLaunch(first.exec, two));
  first.held.leave(two);
  exec_thread.join();
  plain_thread.join();
  sync_all();
  end(first);
  end(third);
}

TEST_F(GroupTurn, RefusesAnotherThreadAfterItsWait) {
  plain first(captured_use_of(*pool));
  plain second(captured_use_of(*pool));
  first.held.enter(two);
  std::jthread([&] {
    expect_error<group_busy>([&] { second.held.enter(three, std::chrono::milliseconds(5)); },
                             {"hoisted::enter", "another thread", "batches"});
  }).join();
  first.held.leave(two);
  second.held.enter(three, std::chrono::nanoseconds(0));
  second.held.leave(three);
  end(first);
  end(second);
}

TEST_F(GroupTurn, RefusesItsOwnThreadAtOnce) {
  plain first(captured_use_of(*pool));
  plain second(captured_use_of(*pool));
  graph_exec third(captured_use_of(*pool));
  first.held.enter(two);
  expect_error<group_busy>([&] { second.held.enter(two); }, {"this thread", "leave() first"});
  expect_error<group_busy>([&] { third.launch(two); }, {"graph_exec::launch", "this thread"});
  first.held.leave(two);
  third.launch(two);
  end(first);
  end(second);
}

TEST_F(GroupTurn, RefusesCallsInTheWrongOrder) {
  plain one_graph(captured_use_of(*pool));
  hoisted& held = one_graph.held;
  EXPECT_THROW(held.leave(two), usage_error);
  held.enter(two);
  EXPECT_THROW(held.enter(two), usage_error);
  EXPECT_THROW(held.release(), usage_error);
  EXPECT_THROW(held.release_after(two), usage_error);
  held.leave(two);
  {
    test::capture open{three, cudaStreamCaptureModeThreadLocal};
    EXPECT_THROW(held.enter(three), usage_error);
    EXPECT_EQ(open.end(), cudaSuccess);
  }
  end(one_graph);
  EXPECT_THROW(held.enter(two), usage_error);
}

TEST_F(GroupTurn, ThatIsForgottenEndsWithItsHandle) {
  errors_expected = true;
  graph_exec second(captured_use_of(*pool));
  {
    plain first(captured_behind_flag([&](cudaStream_t on) { use(*pool, on); }));
    first.held.release_at_end(two);
    first.held.enter(two);
    must(cudaGraphLaunch(first.exec, two));
  }
  EXPECT_NE(errors->all().find("between enter() and leave()"), std::string::npos);
  second.launch(three);
  expect_behind_flag(three);
}

TEST_F(GroupTurn, StatisticsNameGraphsThatNothingOrders) {
  graph plain_source = captured_use_of(*pool);
  graph const unused = captured_use_of(*pool);
  graph_exec const ordered(captured_use_of(*pool));
  EXPECT_EQ(group.stats().unordered.size(), 2U);
  EXPECT_EQ(group.stats().unordered.front(), plain_source.id());
  hoisted held = hoist(plain_source);
  held.enter(two);
  held.leave(two);
  EXPECT_EQ(group.stats().unordered.size(), 1U);
  EXPECT_NE(group.describe().find("\"unordered\": [" + std::to_string(unused.id()) + "]}"),
            std::string::npos)
      << group.describe();
  held.release();
}

}  // namespace
}  // namespace escrow::test
