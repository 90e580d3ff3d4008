// SPDX-License-Identifier: Apache-2.0
// Nodes of a graph with the same memory, which no edge orders. A program of its own: ESCROW_AUDIT
// asks for all that is looked for.
#include <escrow/graph/hoist.hpp>
#include <escrow/nodes/build.hpp>

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <string>

#include "build_graph.hpp"
#include "pool_world.hpp"

namespace escrow::test {
namespace {

[[maybe_unused]] bool const is_audited = [] {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): before there are threads.
  return ::setenv("ESCROW_AUDIT", "1", 1) == 0;
}();

constexpr std::size_t values = 64;
constexpr std::size_t bytes = values * sizeof(int);

void double_on_host(int* data) {
  std::for_each_n(data, values / 2, [](int& each) { each *= 2; });
}
void set_on_host(int* data, int value) {
  std::fill_n(data, values, value);
}
void sum_on_host(int const* data, int* sum) {
  *sum = std::accumulate(data, data + values, *sum);
}
auto* const doubled = sim::register_kernel<&double_on_host>("doubled");
auto* const set = sim::register_kernel<&set_on_host>("set");
auto* const sum = sim::register_kernel<&sum_on_host>("sum");

class Unordered : public pool_world {
 protected:
  Unordered() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }

  void expect_ended(graph const& made, std::string const& what) {
    graph_exec exec(made);
    EXPECT_DEATH(exec.launch(one), "cudaGraphLaunch: no edge of the graph orders " + what +
                                       ", which both use 0x.*: give one of the two nodes");
    sim::let_work_share(true);
    exec.launch(one);
    sync(one);
    sim::let_work_share(false);
    graph_exec again(made);
    EXPECT_DEATH(again.launch(one), "no edge of the graph orders");
  }
  void expect_fine(graph const& made) {
    graph_exec exec(made);
    exec.launch(one);
    sync(one);
  }

  device_buffer<int> const memory{values};
  device_buffer<int> const others{values};
};

TEST_F(Unordered, AFillAndAKernel) {
  graph made;
  node const first = build(made).add(memset_node(memory.data(), {.width = bytes}));
  node const other = build(made).add(kernel_node(doubled, {}, memory.data() + 1));
  expect_ended(made, "a fill or copy, and kernel .doubled., argument 0");
  graph_exec exec(made);
  set_enabled(exec, first, false);  // as where one of the two is chosen
  exec.launch(one);
  set_enabled(exec, first, true);
  EXPECT_DEATH(exec.launch(one), "no edge of the graph orders");
  other.after(first);
  expect_fine(made);
}

TEST_F(Unordered, CopiesAndFills) {
  graph made;
  node const begin = build(made).join();
  std::size_t const half = bytes / 2;
  begin.add(memset_node(memory.data(), {.width = half}));
  begin.add(memcpy_node(memory.data() + values / 2, others.data(), half));
  begin.add(memcpy_node(others.data() + values / 2, others.data(), half));
  expect_fine(made);  // what is only read, and what lies beside it
  begin.add(memset_node(others.data() + values / 2 - 1, {.width = sizeof(int)}));
  expect_ended(made, "a (fill or )?copy, and a (fill or )?copy");
}

TEST_F(Unordered, PartsOfChildren) {
  graph inner;
  build(inner).add(kernel_node(set, {}, memory.data(), 1));
  graph made;
  node const child = build(made).add(child_node(inner));
  node const other = build(made).add(memset_node(memory.data(), {.width = bytes}));
  expect_ended(made, "a fill or copy, and kernel .set., argument 0");
  other.after(child);
  expect_fine(made);
  build(inner).add(memset_node(memory.data(), {.width = bytes}));
  graph outer;
  build(outer).add(child_node(inner));
  expect_ended(outer, "a fill or copy, and kernel .set., argument 0");
}

TEST_F(Unordered, TwoKernelsOfWhichOneWrites) {
  graph made;
  node const first = build(made).add(kernel_node(doubled, {}, memory.data()));
  node const other = build(made).add(kernel_node(sum, {}, memory.data(), others.data()));
  expect_ended(made, "kernel .*, argument 0, and kernel .*, argument 0");
  other.after(first);
  expect_fine(made);
  graph readers;  // and two runs of one kernel, which may add
  build(readers).add(kernel_node(sum, {}, memory.data(), others.data()));
  build(readers).add(kernel_node(sum, {}, memory.data(), others.data()));
  expect_fine(readers);
}

TEST_F(Unordered, WhatEventsMayOrder) {
  graph made;
  auto const ready = event::shared(cudaEventDisableTiming);
  node const first = build(made).add(memset_node(memory.data(), {.width = bytes}));
  first.add(record_node(ready));
  build(made).add(wait_node(ready)).add(kernel_node(doubled, {}, memory.data()));
  expect_fine(made);
}

TEST_F(Unordered, NodesThatAnUpdateBrought) {
  graph made;
  build(made).add(memset_node(memory.data(), {.width = bytes}));
  node const other = build(made).add(kernel_node(doubled, {}, others.data()));
  graph_exec exec(made);
  exec.launch(one);
  sync(one);
  other.set(kernel_node(doubled, {}, memory.data()));
  exec.update(made);
  EXPECT_DEATH(exec.launch(one), "no edge of the graph orders");
}

// What else is so where all is audited.
class AllAudited : public pool_world {};

TEST_F(AllAudited, APoolMayMakeItsResourcesOnAStreamOfItsOwnInACapture) {
  resource_pool<device_buffer<int>> pool(options(4), [this] {
    device_buffer<int> made(values);
    must(cudaMemsetAsync(made.data(), 0, bytes, two));
    sync(two);
    return made;
  });
  auto const use = [&](cudaStream_t on) { must(launch_add(on, pool.claim(on)->data(), 1)); };
  graph_exec exec(captured(use));
  exec.launch(one);
  sync(one);
  auto const elsewhere = [&](cudaStream_t on) {
    use(on);
    must(launch_tiny(two));
  };
  expect_error<usage_error>([&] { return captured(elsewhere); }, {"not all was captured"});
}

TEST_F(AllAudited, AGraphWhoseHoistedHasReleasedIsToldSoFirst) {
  scratch_pool scratch(options(4));
  graph const made = captured(
      [&](cudaStream_t on) { must(launch_add(on, scratch.claim<int>(on, values).data(), 1)); });
  hoist(made).release();
  expect_error<usage_error>([&] { return graph_exec(made); },
                            {"has released what the graph uses", "or capture again"});
}

}  // namespace
}  // namespace escrow::test
