// SPDX-License-Identifier: Apache-2.0
// Why CUDA refuses a graph, or a pool its options: the error says what it is and what to do.
#include <cmath>
#include <escrow/nodes.hpp>

#include "world.hpp"

namespace escrow::test {
namespace {

class WhyRefused : public world {};

TEST_F(WhyRefused, IsSaidOfGraphs) {
  {
    graph circle;
    node const first = build(circle).join();
    node const second = first.join();
    expect_refused({{"node::after", {"`other` is the node itself"}, [&] { first.after(first); }}});
    first.after(second);
    expect_explained([&] { graph_exec{circle}; },
                     {"graph_exec::graph_exec", "its edges form a cycle"});
  }
  {
    graph unused;
    static_cast<void>(build(unused).make_condition(0));
    expect_explained([&] { graph_exec{unused}; }, {"a condition that no node has"});
  }
  {
    graph loop;
    escrow::conditional_node const branch = build(loop).add(if_node(build(loop).make_condition(0)));
    branch.body().add(host_node([] {}));
    expect_explained([&] { graph_exec{loop}; }, {"a body has a node of kind host"});
    expect_explained([&] { graph_exec(captured_without_cargo(), {.flags = 1U << 30U}); },
                     {"`flags` has bits that CUDA does not know"});
  }
  {
    graph branching;
    build(branching).add(if_node(build(branching).make_condition(0)));
    expect_explained([&] { return branching.clone(); },
                     {"graph::clone", "CUDA copies no graph with conditional or memory nodes"});
    graph_exec const only(branching);
    expect_explained([&] { graph_exec{branching}; },
                     {"a graph with conditional nodes has one exec at a time"});
  }
  {
    graph allocating;
    escrow::allocation const memory = build(allocating).add(alloc_node(4));
    memory.add(free_node(memory.address()));
    expect_explained([&] { return allocating.clone(); }, {"CUDA copies no graph"});
    graph_exec const only(allocating);
    expect_explained([&] { graph_exec{allocating}; },
                     {"a graph with memory nodes has one exec at a time: destroy that first"});
  }
  {
    graph allocating;
    build(allocating).add(alloc_node(4));
    graph_exec exec(allocating);
    exec.launch(one);
    expect_explained([&] { exec.launch(one); },
                     {"graph_exec::launch", "is freed before the next launch", "AutoFreeOnLaunch"});
    sync(one);
  }
  if (is_simulated()) {  // CUDA may crash
    cudaGraph_t destroyed = nullptr;
    must(cudaGraphCreate(&destroyed, 0));
    must(cudaGraphDestroy(destroyed));
    expect_explained([&] { graph_exec{destroyed}; },
                     {"cudaGraphGetNodes", "is null or was destroyed"});
  }
  expect_explained([&] { captured_without_cargo().write_dot("/nowhere/at/all"); },
                   {"graph::write_dot", "`file` cannot be written: /nowhere/at/all"});
}

TEST_F(WhyRefused, IsSaidOfAKernelThatTheProgramLacks) {
  static int const no_kernel = 0;
  expect_explained([&] { launch(two, kernel(static_cast<void const*>(&no_kernel)), {}); },
                   {"launch: ", "cudaErrorInvalidResourceHandle", "compile for the device's",
                    "sim::register_kernel()"});
}

TEST_F(WhyRefused, IsSaidOfOptionsThatCannotBe) {
  auto const with_time = [&](auto member) {
    pool_options given = options(1);
    given.*member = std::chrono::nanoseconds(-1);
    return given;
  };
  using std::chrono::nanoseconds;
  struct wrong {
    char const* call;
    pool_options options;
    scratch_policy policy;
    char const* problem;
  };
  for (wrong const& each : std::vector<wrong>{
           {"pool_options", with_time(&pool_options::host_wait_max), {}, "`host_wait_max` is"},
           {"pool_options", with_time(&pool_options::capture_wait_max), {}, "`capture_wait_max`"},
           {"pool_options", with_time(&pool_options::reclaim_wait_max), {}, "`reclaim_wait_max`"},
           {"scratch_policy", options(1), {.idle_max = nanoseconds(-1)}, "`idle_max` is negative"},
           {"scratch_policy", options(1), {.keep_window = nanoseconds(-1)}, "`keep_window`"},
           {"scratch_policy", options(1), {.keep_factor = 0.5}, "`keep_factor` is less than 1"},
           {"scratch_policy", options(1), {.keep_factor = std::nan("")}, "`keep_factor`"}}) {
    expect_refused({{each.call, {each.problem}, [&] { scratch_pool(each.options, each.policy); }}});
  }
  constexpr std::chrono::microseconds negative(-1);
  for (auto const& [given, told] : std::vector<std::pair<deleter_options, char const*>>{
           {{.poll_interval_min = negative}, "`poll_interval_min` is negative"},
           {{.poll_interval_max = negative}, "`poll_interval_max` is negative"},
           {{.linger = negative}, "`linger` is negative"}}) {
    expect_refused({{"deleter_options", {told}, [&, &its = given] { deleter{its}; }}});
  }
}

TEST_F(WhyRefused, IsSaidOfAPoolOfPointersThatNothingDestroys) {
  expect_refused({{"resource_pool::resource_pool",
                   {"`destroy` of \"blocks\" is empty, and its resources are pointers"},
                   [&] { resource_pool<int*>(options(1), [] { return new int; }); }}});
}

TEST_F(WhyRefused, IsSaidOfMemoryThatIsNotThere) {
  constexpr std::size_t too_many = std::size_t{1} << 50;
  expect_explained([&] { device_buffer<char>{too_many}; },
                   {"device_buffer: ", "for 1125899906842624 bytes"});
  expect_explained([&] { device_block{too_many}; },
                   {"device_block: ", "for 1125899906842624 bytes"});
  int const negative = -5;
  expect_explained([&] { device_block{static_cast<std::size_t>(negative)}; },
                   {"device_block: ", " bytes, which is -5 converted to std::size_t"});
}

TEST_F(WhyRefused, IsSaidInACallback) {
  std::string text;
  auto const allocates = [](void* to) {
    try {
      device_block{4};
    } catch (std::exception const& failed) {
      *static_cast<std::string*>(to) = failed.what();
    }
  };
  must(cudaLaunchHostFunc(one, allocates, &text));
  sync(one);
  EXPECT_NE(text.find("in a CUDA callback"), std::string::npos) << text;
}

TEST_F(WhyRefused, IsSaidOfEventsThatAreNotThere) {
  event_ref const null(cudaEvent_t{});
  expect_refused({{"event_ref::record", {"the event is null"}, [&] { null.record(one); }},
                  {"event_ref::wait", {"the event is null"}, [&] { null.wait(one); }},
                  {"event_ref::is_done", {"the event is null"}, [&] { return null.is_done(); }},
                  {"event_ref::sync", {"the event is null"}, [&] { null.sync(); }}});
  if (is_simulated()) {  // CUDA may crash
    event made;
    cudaEvent_t const handle = made.detach();
    must(cudaEventDestroy(handle));
    expect_explained([&] { event_ref(handle).record(one); },
                     {"cudaEventRecord", "the event is of another device than the stream"});
  }
}

}  // namespace
}  // namespace escrow::test
