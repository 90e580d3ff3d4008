// The end of the process: nothing hangs, nothing crashes, whatever is still owed.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "build_graph.hpp"
#include "child.hpp"
#include "escrow/deleter/deleter.hpp"
#include "escrow/deleter/shared_object.hpp"
#include "handles.hpp"
#include "kernels.hpp"
#include "owners.hpp"

namespace escrow {
namespace {

using test::make_fate;
using test::probe;

void expect_clean_end(char const* name) {
  test::child_result const result = test::run_child(name);
  EXPECT_TRUE(result.exited) << result.output;
  EXPECT_EQ(result.status, 0) << result.output;
}

int leave_graphs_owing() {
  static test::owned_graph graph = test::tiny_graph();
  static test::owned_exec exec = test::instantiate(graph);
  deleter::global().retire(graph.get(), probe(make_fate()));
  return 0;
}
test::child_case const graphs_owing("graphs_owing", &leave_graphs_owing);

int leave_work_pending() {
  static test::owned_stream stream = test::make_stream();
  for (int i = 0; i < 100; ++i) {
    test::must(test::launch_sleep(stream, 100));
    deleter::global().retire(stream, probe(make_fate()));
  }
  return 0;
}
test::child_case const work_pending("work_pending", &leave_work_pending);

int leave_a_static_deleter() {
  static deleter its;
  static deleter polled(deleter_options{.own_worker = false});
  static test::owned_graph graph = test::tiny_graph();
  its.retire(graph.get(), probe(make_fate()));
  polled.retire(graph.get(), probe(make_fate()));
  its.retire(probe(make_fate()));
  polled.retire(probe(make_fate()));
  return 0;
}
test::child_case const static_deleter("static_deleter", &leave_a_static_deleter);

int leave_deleters_that_are_gone() {
  static test::owned_graph graph = test::tiny_graph();
  test::owned_stream const stream = test::make_stream();
  for (int i = 0; i < 50; ++i) {
    deleter gone;
    gone.retire(graph.get(), probe(make_fate()));
    gone.retire(stream, probe(make_fate()));
  }
  for (int i = 0; i < 50; ++i) {
    deleter about_to_end;
    about_to_end.retire(stream, probe(make_fate()));
  }
  return 0;
}
test::child_case const deleters_gone("deleters_gone", &leave_deleters_that_are_gone);

int leave_a_static_share() {
  static test::owned_stream const stream = test::make_stream();
  static std::shared_ptr<probe> const before = make_stream_shared<probe>(make_fate());
  deleter::global().drain();  // the exit handler is there
  static std::shared_ptr<probe> const after = make_stream_shared<probe>(make_fate());
  test::must(test::launch_sleep(stream, 1000));
  record_stream(before, stream);
  record_stream(after, stream);
  return 0;
}
test::child_case const static_share("static_share", &leave_a_static_share);

int leave_the_worker_stuck() {
  std::atomic<bool> entered{false};
  static std::atomic<bool> never{false};
  deleter::global().retire(probe(make_fate([&] {
    entered.store(true, std::memory_order_release);
    never.wait(false);
  })));
  test::must(test::wait_until([&] { return entered.load(std::memory_order_acquire); }), "entered");
  return 0;
}
test::child_case const worker_stuck("worker_stuck", &leave_the_worker_stuck);

int poll_at_exit() {
  // Nobody has a worker. At exit this runs after the deleter's handler.
  static deleter* polled = nullptr;
  static test::fate_ptr& fate = *new test::fate_ptr(make_fate());
  static_cast<void>(std::atexit([] {
    std::size_t const count = polled->poll();
    bool const is_drained = polled->drain_for(std::chrono::milliseconds(10));
    if (count != 0 || is_drained || fate->was_destroyed()) std::_Exit(1);
  }));
  polled = new deleter(deleter_options{.own_worker = false});
  polled->retire(probe(fate));
  return 0;
}
test::child_case const polls_at_exit("polls_at_exit", &poll_at_exit);

int drain_at_exit() {
  // A static that drains in its destructor, after the exit handler of the deleter has run or
  // before.
  struct drains {
    ~drains() {
      deleter::global().drain();
      std::puts("drained");
    }
  };
  static drains const early;
  deleter::global().retire(probe(make_fate()));
  static drains const late;
  return 0;
}
test::child_case const drains_at_exit("drains_at_exit", &drain_at_exit);

TEST(ProcessExit, IsCleanWhileGraphsOwe) {
  expect_clean_end("graphs_owing");
}
TEST(ProcessExit, IsCleanWhileWorkIsPending) {
  expect_clean_end("work_pending");
}
TEST(ProcessExit, IsCleanWithDeletersThatAreStatic) {
  expect_clean_end("static_deleter");
}
TEST(ProcessExit, IsCleanWhileTheWorkersOfDeletersThatAreGoneEnd) {
  for (int round = 0; round < 5; ++round) expect_clean_end("deleters_gone");
}
TEST(ProcessExit, IsCleanWithSharesThatAreStatic) {
  expect_clean_end("static_share");
}
TEST(ProcessExit, IsBoundedWhileTheWorkerIsStuckInADestructor) {
  expect_clean_end("worker_stuck");
}
TEST(ProcessExit, NothingIsReclaimedAfterwardsWithoutAWorkerEither) {
  expect_clean_end("polls_at_exit");
}
TEST(ProcessExit, ADrainInAStaticDestructorReturns) {
  expect_clean_end("drains_at_exit");
}

}  // namespace
}  // namespace escrow
