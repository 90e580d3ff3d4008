// SPDX-License-Identifier: Apache-2.0
// Stepped runs: one seeded choice at a time, virtual time, and a run that is a function of its
// seed. And host functions as kernels, and the values of conditions, stepped or not.
#include <set>

#include "deep.hpp"
#include "graph_nodes.hpp"

namespace escrow::test {
namespace {

using namespace std::chrono_literals;

void start(std::uint64_t seed) {
  sim::reset({.stepped = true, .seed = seed});
}

class Stepped : public fresh_runtime {
 protected:
  Stepped() { start(1); }
};

int calls_without_arguments = 0;
void count_call() {
  ++calls_without_arguments;
}
void store(double* to, char digit, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) to[i] = digit - '0';
}

TEST_F(Stepped, AHostFunctionIsAKernelWithItsOwnParametersCopiedAtTheLaunch) {
  owned_stream const stream = make_stream();
  double values[] = {0, 0, 0};
  double* to = values;
  char digit = '7';
  std::size_t count = 2;
  void* arguments[] = {&to, &digit, &count};
  void* const kernel = reinterpret_cast<void*>(sim::register_kernel<&store>("store"));
  must(cudaLaunchKernel(kernel, {1}, {1}, arguments, 0, stream));
  count = 3;
  digit = '8';
  void* const other = reinterpret_cast<void*>(sim::register_kernel<&count_call>());
  must(cudaLaunchKernel(other, {1}, {1}, nullptr, 0, stream));
  must(cudaStreamSynchronize(stream));
  EXPECT_EQ(std::vector(std::begin(values), std::end(values)), (std::vector{7.0, 7.0, 0.0}));
  EXPECT_EQ(calls_without_arguments, 1);
  char const* name = nullptr;
  must(cudaFuncGetName(&name, kernel));
  EXPECT_STREQ(name, "store");
}

void append(void* argument) {
  auto& [order, letter] = *static_cast<std::pair<std::string*, char>*>(argument);
  order->push_back(letter);
}

// In which order the host functions of three streams run, two on each.
std::string order_of_this_run() {
  std::string order;
  std::vector<std::pair<std::string*, char>> letters;
  for (char const letter : std::string("aAbBcC")) letters.emplace_back(&order, letter);
  std::vector<owned_stream> streams(3);
  for (std::size_t i = 0; i < letters.size(); ++i) {
    if (i % 2 == 0) streams[i / 2] = make_stream();
    must(cudaLaunchHostFunc(streams[i / 2], append, &letters[i]));
  }
  must(cudaDeviceSynchronize());
  return order;
}

std::string order_of_a_run(std::uint64_t seed) {
  start(seed);
  return order_of_this_run();
}

TEST_F(Stepped, ARunIsAFunctionOfItsSeedAlsoOneThatANewSeedBeginsAndWhichKeepsWhatExists) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    std::string const alone = order_of_a_run(seed);
    EXPECT_EQ(order_of_a_run(seed), alone) << "seed " << seed;
    start(100);
    owned_event const kept = make_event();
    static_cast<void>(order_of_this_run());
    sim::reseed(seed);
    EXPECT_EQ(order_of_this_run(), alone) << "seed " << seed;
    EXPECT_EQ(cudaEventQuery(kept), cudaSuccess);
  }
}

TEST_F(Stepped, SeedsReachAllInterleavingsThatKeepTheOrderOfEachStream) {
  std::set<std::string> orders;
  for (std::uint64_t seed = 1; seed <= 2000; ++seed) orders.insert(order_of_a_run(seed));
  // Six operations in three pairs whose order is fixed: 6! / 2^3.
  EXPECT_EQ(orders.size(), 90U);
}

// Three kernels, of which the second is behind `edge` and the last behind the second, as they run.
std::string order_behind(cudaGraphEdgeData const& edge, std::uint64_t seed) {
  start(seed);
  pinned_ints cells{3};
  owned_stream const stream = make_stream();
  owned_graph const graph = make_graph();
  cudaGraphNode_t first = add_kernel(graph, add_call(cells.data(), 1));
  cudaGraphNode_t second = add_kernel(graph, add_call(cells.data() + 1, 1));
  static_cast<void>(add_kernel(graph, add_call(cells.data() + 2, 1), second));
  must(cudaGraphAddDependencies(graph, &first, &second, &edge, 1));
  owned_exec const exec = instantiate(graph);
  must(cudaGraphLaunch(exec, stream));
  std::string order;
  while (sim::step()) {
    for (std::size_t i = 0; i < 3; ++i) {
      char const letter = static_cast<char>('a' + i);
      if (cells.load(i) == 1 && order.find(letter) == std::string::npos) order += letter;
    }
  }
  return order;
}

TEST_F(Stepped, WhatIsBehindTheBeginningOfAKernelMayRunBeforeItAndProgrammaticLaunchesEndAfterIt) {
  std::set<std::string> full;
  std::set<std::string> completion;
  std::set<std::string> trigger;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    full.insert(order_behind(full_edge, seed));
    completion.insert(order_behind(launch_completion_edge, seed));
    trigger.insert(order_behind(trigger_edge, seed));
  }
  EXPECT_EQ(full, (std::set<std::string>{"abc"}));
  EXPECT_EQ(completion, (std::set<std::string>{"abc", "bac", "bca"}));
  EXPECT_EQ(trigger, (std::set<std::string>{"abc", "bac"}));
}

TEST_F(Stepped, NothingHappensBeforeAStepAndAKernelThatSleepsTakesVirtualTimeOnly) {
  owned_stream const stream = make_stream();
  owned_event const event = make_event();
  must(launch_tiny(stream));
  must(cudaEventRecord(event, stream));
  EXPECT_EQ(cudaEventQuery(event), cudaErrorNotReady);
  EXPECT_TRUE(sim::step());
  EXPECT_EQ(cudaEventQuery(event), cudaErrorNotReady);
  EXPECT_TRUE(sim::step());
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess);
  EXPECT_FALSE(sim::step());
  must(launch_sleep(stream, 5'000'000));
  auto const before = sim::now();
  must(cudaStreamSynchronize(stream));
  EXPECT_GE(sim::now() - before, 5s);
}

TEST_F(Stepped, ABlockingCallStepsUntilItIsSatisfiedAlsoBesideAKernelThatIsNotDone) {
  pinned_flag flag;
  owned_stream const stuck = make_stream();
  owned_stream const other = make_stream();
  pinned_ints cell;
  must(launch_wait_flag(stuck, flag.get()));
  must(launch_add(other, cell.data(), 1));
  EXPECT_EQ(cell.load(), 0);
  ASSERT_EQ(cudaStreamSynchronize(other), cudaSuccess);
  EXPECT_EQ(cell.load(), 1);
  EXPECT_EQ(cudaStreamQuery(stuck), cudaErrorNotReady);
  flag.raise();
  sim::run_until_idle();
  EXPECT_EQ(sim::alive().pending_ops, 0U);
  EXPECT_EQ(cudaStreamQuery(stuck), cudaSuccess);
}

TEST_F(Stepped, ADestructorOfALaunchedExecIsDueAfterItsDelay) {
  witness seen;
  owned_stream const stream = make_stream();
  owned_graph graph = tiny_graph();
  seen.move_to(graph);
  owned_exec exec = instantiate(graph);
  graph.reset();
  must(cudaGraphLaunch(exec, stream));
  must(cudaStreamSynchronize(stream));
  exec.reset();
  EXPECT_FALSE(seen.ran());
  sim::advance(1ms);
  EXPECT_FALSE(seen.ran());
  EXPECT_TRUE(sim::step());
  EXPECT_TRUE(seen.ran_here());
  EXPECT_FALSE(sim::step());
}

TEST_F(Stepped, AWaitThatNothingCanEndAbortsAndNamesTheSeed) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        start(42);
        pinned_ints flag;
        owned_stream const stream = make_stream();
        must(launch_wait_flag(stream, flag.data()));
        must(cudaStreamSynchronize(stream));
      },
      "cudaStreamSynchronize blocks.*seed 42, stepped");
}

TEST_F(Stepped, ALoopThatAsksWhereNobodyStepsAborts) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        start(42);
        owned_stream const stream = make_stream();
        must(launch_tiny(stream));
        while (cudaStreamQuery(stream) == cudaErrorNotReady) continue;
      },
      "cudaStreamQuery was called 1000000 times .* nobody steps: call sim::step");
}

// A WHILE node that adds 1 to `cell` until it is `limit`.
owned_graph loop(int* cell, int limit) {
  owned_graph graph = make_graph();
  auto const condition = make_condition(graph, 1);
  auto* const body = add_conditional_node(graph, condition, cudaGraphCondTypeWhile).bodies[0];
  add_kernel(body, set_condition_below_call(condition, cell, limit),
             add_kernel(body, add_call(cell, 1)));
  return graph;
}

using ConditionValues = fresh_runtime;

TEST_F(ConditionValues, AreFreedWithTheExecThatHadThem) {
  pinned_ints cells;
  owned_stream const stream = make_stream();
  for (int round = 1; round <= 3; ++round) {
    owned_exec exec = instantiate(loop(cells.data(), 2 * round));
    must(cudaGraphLaunch(exec, stream));
    exec.reset();  // waits for the launch
    EXPECT_EQ(cells.load(), 2 * round);
    EXPECT_EQ(sim::alive().condition_values, 0U);
  }
}

TEST_F(ConditionValues, AreFreedWithTheGraphThatAnUpdateReplaces) {
  for (bool const is_in_flight : {false, true}) {
    sim::reset({.stepped = true});
    pinned_ints cells{2};
    owned_stream const stream = make_stream();
    owned_graph const second = loop(cells.data() + 1, 5);
    owned_exec exec = instantiate(loop(cells.data(), 3));
    must(cudaGraphLaunch(exec, stream));
    if (!is_in_flight) sim::run_until_idle();
    must(update(exec, second));
    must(cudaGraphLaunch(exec, stream));
    exec.reset();  // waits for the launches
    sim::run_until_idle();
    EXPECT_EQ(cells.load(0), 3);
    EXPECT_EQ(cells.load(1), 5);
    EXPECT_EQ(sim::alive().condition_values, 0U) << "in flight: " << is_in_flight;
  }
}

TEST_F(ConditionValues, OfNoNodeAreFreedWithTheExecThatAnUpdateGaveThem) {
  for (bool const is_in_flight : {false, true}) {
    sim::reset({.stepped = true});
    owned_stream const stream = make_stream();
    owned_graph const second = tiny_graph();
    static_cast<void>(make_condition(second, 1));
    owned_exec exec = instantiate(tiny_graph());
    must(update(exec, second));
    must(cudaGraphLaunch(exec, stream));
    if (!is_in_flight) sim::run_until_idle();
    exec.reset();
    sim::run_until_idle();
    EXPECT_EQ(sim::alive().condition_values, 0U) << "in flight: " << is_in_flight;
  }
}

TEST_F(ConditionValues, ALoopWithoutAnEndIsNamed) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        sim::reset({.stepped = true});
        pinned_ints cells;
        owned_stream const stream = make_stream();
        owned_exec const exec = instantiate(loop(cells.data(), 1 << 30));
        must(cudaGraphLaunch(exec, stream));
        must(cudaStreamSynchronize(stream));
      },
      "cudaStreamSynchronize blocks; the body of a while_node has run 1.* times: a kernel in it");
}

TEST_F(ConditionValues, EndALoopWhenItsDeviceFails) {
  pinned_ints cells;
  owned_stream const stream = make_stream();
  owned_exec const exec = instantiate(loop(cells.data(), 1 << 30));
  must(cudaGraphLaunch(exec, stream));
  ASSERT_TRUE(wait_until([&] { return cells.load() > 10; }));
  sim::fail_device(0, cudaErrorIllegalAddress);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorIllegalAddress);
  sim::run_until_idle();
  EXPECT_EQ(sim::alive().pending_ops, 0U);
}

}  // namespace
}  // namespace escrow::test
