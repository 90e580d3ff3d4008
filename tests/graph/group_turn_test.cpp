// Launches of a sharing group's graphs by the caller's own code, between enter() and leave().
#include <atomic>
#include <chrono>
#include <cstdint>
#include <escrow/internal/graph_query.hpp>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

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
  plain fourth(captured_use_of(*pool));
  first.held.enter(two);
  std::atomic<int> begun{0};
  {
    std::vector<std::jthread> threads;
    for (auto const& begin : std::vector<std::function<void()>>{
             [&] { second.launch(three); }, [&] { launch_in_turn(third, one); },
             [&] {
               fourth.held.enter(asking, std::chrono::nanoseconds::max());
               fourth.held.leave(asking);
             }}) {
      threads.emplace_back([&begun, begin] {
        begin();
        ++begun;
      });
    }
    EXPECT_TRUE(stays_false([&] { return begun != 0; }));
    must(cudaGraphLaunch(first.exec, two));
    first.held.leave(two);
  }
  EXPECT_EQ(begun, 3);
  sync_all();
  for (plain* const each : {&first, &third, &fourth}) end(*each);
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

TEST_F(GroupTurn, StatisticsNameAGraphOnceAsLongAsNothingOrdersIt) {
  graph const other = captured_use_of(*pool);
  EXPECT_EQ(group.stats().unordered, std::vector{other.id()});
  EXPECT_NE(group.describe().find("\"unordered\": [" + std::to_string(other.id()) + "]}"),
            std::string::npos)
      << group.describe();
  graph built;
  capture_into(built.get(), [&](cudaStream_t on) { use(*pool, on); });
  EXPECT_EQ(group.stats().unordered.size(), 2U);
  graph_exec const ordered(other);
  std::vector<std::uint64_t> const its_id{graph_id_of(built.get()).value_or(0)};
  EXPECT_EQ(group.stats().unordered, its_id) << "a graph created by Escrow";
  static_cast<void>(graph_exec(captured_use_of(*pool)));
  { graph const copied = built.clone(); }  // the next claim does not join the first
  capture_into(built.get(), [&](cudaStream_t on) { use(*pool, on); });
  EXPECT_EQ(group.stats().unordered, its_id) << "with two sets";
#ifdef ESCROW_TEST_RUNTIME_SIM
  sim::fail_call_here("cudaGraphInstantiate", cudaErrorUnknown);
  EXPECT_THROW(graph_exec const refused(built), cuda_error);
  static_cast<void>(cudaGetLastError());
  EXPECT_EQ(group.stats().unordered, its_id) << "no exec was created";
#endif
  hoisted held = hoist(built);
  EXPECT_EQ(group.stats().unordered, its_id) << "enter() was not called";
  held.enter(two);
  held.leave(two);
  EXPECT_TRUE(group.stats().unordered.empty());
  held.release();
}

#ifdef ESCROW_TEST_RUNTIME_SIM
TEST_F(GroupTurn, WhoseEndIsNotKnownBlocksOthersUntilItsRelease) {
  graph_exec other(captured_use_of(*pool));
  for (bool const is_after_stream : {false, true}) {
    plain one_graph(captured_use_of(*pool));
    one_graph.held.enter(two);
    must(cudaGraphLaunch(one_graph.exec, two));
    sim::fail_call_here("cudaEventRecord", cudaErrorUnknown, 1, 100);
    sim::fail_call_here("cudaStreamSynchronize", cudaErrorUnknown, 1, 100);
    EXPECT_THROW(one_graph.held.leave(two), cuda_error);
    sim::clear_faults();
    static_cast<void>(cudaGetLastError());
    EXPECT_THROW(other.launch(three), cuda_error);
    if (is_after_stream) {
      one_graph.held.release_after(stream_ref(two));
    } else {
      sync(two);
      end(one_graph);
    }
    other.launch(three);
    sync_all();
  }
}
#endif

}  // namespace
}  // namespace escrow::test
