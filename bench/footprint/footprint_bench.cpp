// SPDX-License-Identifier: Apache-2.0
// What scratch costs that many graphs share, and one exec for many graphs of equal shape.
//
// footprint/WAY/graphs:G: G graphs of 8 tiny kernels, each with scratch of one size, are launched
// on one stream in a recorded pattern: at random, or, in footprint_long/..., each for 50 launches.
// Each way takes turns with plain launches over one arena in the same pattern. device_kib is what
// the device gave for the scratch of all graphs. footprint_mixed: see mixed.cpp.
//
// kept, kept_again, freeing: see kept.cpp.  park: see parked.cpp.
//
// exec_set/same/kernels:K: launches of one graph of a set, beside plain launches of its exec.
// exec_set/switch/kernels:K: launches of two graphs in turn, beside a plain update before each
// launch. exec_set/memory: device memory of 64 graphs in a set, beside one exec and 64.
#include <random>

#include "memory.hpp"
#include "scratch_ways.hpp"
#include "thread_team.hpp"

namespace escrow::bench {
namespace {

constexpr std::size_t graphs_in_figures = 64;
constexpr sizes launches_on_gpu{.instances = 3, .row = 400, .steady = 200, .bursts = 4};

// A form that makes one of the calls at each launch: in turn, or in the order of these indices.
relaunch_form in_turn(std::vector<launch_call> calls, std::vector<std::size_t> order = {}) {
  while (order.size() < calls.size()) order.push_back(order.size());
  relaunch_form form;
  form.launch = [calls = std::move(calls), order = std::move(order),
                 next = std::size_t{0}](cudaStream_t on) mutable {
    calls[order[next]](on);
    if (++next == order.size()) next = 0;
  };
  return form;
}

// The graphs in the order of their launches, the same in each run: so many of one graph before
// another is drawn.
std::vector<std::size_t> recorded(int launches_alike, std::size_t graphs) {
  constexpr std::size_t launches = 1000;
  std::minstd_rand next(static_cast<unsigned>(graphs));
  std::vector<std::size_t> order;
  while (order.size() < launches) {
    std::size_t const graph = next() % graphs;
    order.insert(order.end(), static_cast<std::size_t>(launches_alike), graph);
  }
  return order;
}

// Graphs that have been launched once, and are launched in a pattern from now on.
relaunch_form make_family(cudaStream_t stream, way_arm const& which, int launches_alike,
                          std::size_t graphs, std::size_t bytes) {
  constexpr int kernels_of_each = 8;
  scratch_way const way = which.setup(bytes);
  std::vector<launch_call> calls;
  while (calls.size() < graphs) {
    calls.push_back(way.exec_of(stream, [&] {
      void* const scratch = way.claim(stream, bytes);
      enqueue_row(stream, kernels_of_each);
      way.release(stream, scratch);
    }));
    calls.back()(stream);
  }
  test::must(cudaStreamSynchronize(stream));
  constexpr std::size_t kib = 1024;
  relaunch_form form = in_turn(std::move(calls), recorded(launches_alike, graphs));
  form.facts["scratch_kib"] = static_cast<int>(scratch_pool::block_bytes(bytes) / kib);
  form.facts["device_kib"] = static_cast<int>(way.device_bytes() / kib);
  form.settle = [way] {};  // ends behind the execs
  return form;
}

void add_family(settings const& how, way_arm const& which, bool is_long, std::size_t graphs) {
  std::size_t const bytes = std::size_t{1} << (how.is_simulated ? 16U : 26U);
  auto const maker_of = [=](way_arm const& of) {
    return [=](cudaStream_t stream) {
      return make_family(stream, of, is_long ? 50 : 1, graphs, bytes);
    };
  };
  add_launches(how,
               (is_long ? "footprint_long/" : "footprint/") + std::string(which.name) +
                   "/graphs:" + std::to_string(graphs),
               maker_of(arm_named("arena", ways)), maker_of(which), launches_on_gpu);
}

// Execs for many graphs.

graph graph_of(cudaStream_t stream, int kernels) {
  return capture(stream_ref(stream), [kernels](stream_ref on) { enqueue_row(on.get(), kernels); });
}

// Launches the graphs of a set in turn.
relaunch_form in_a_set(cudaStream_t stream, int kernels, std::size_t graphs) {
  auto const set = std::make_shared<exec_set>();
  std::vector<launch_call> calls;
  while (calls.size() < graphs) {
    auto const member = set->add(graph_of(stream, kernels));
    calls.emplace_back([=](cudaStream_t on) { set->launch(member, on); });
  }
  return in_turn(std::move(calls));
}

// The same by plain calls.
relaunch_form updated_plainly(cudaStream_t stream, int kernels, std::size_t graphs) {
  auto const exec =
      std::make_shared<test::owned_exec>(test::instantiate(graph_of(stream, kernels).get()));
  std::vector<launch_call> calls;
  while (calls.size() < graphs) {
    auto const source = std::make_shared<graph>(graph_of(stream, kernels));
    calls.emplace_back([=](cudaStream_t on) {
      cudaGraphExecUpdateResultInfo result{};
      if (graphs > 1) test::must(cudaGraphExecUpdate(*exec, source->get(), &result));
      test::must(cudaGraphLaunch(*exec, on));
    });
  }
  return in_turn(std::move(calls));
}

// What the device has less of after `make` than before, in KiB.
template <class Make>
double kib_taken_by(Make make, std::size_t times) {
  double const before = free_device_bytes();
  for (std::size_t i = 0; i < times; ++i) make();
  test::must(cudaDeviceSynchronize());
  return (before - free_device_bytes()) / 1024;
}

void measure_exec_memory(benchmark::State& state, int kernels) {
  test::owned_stream const stream = test::make_stream();
  // All stay until the end: CUDA keeps what an exec had for the next one.
  std::vector<test::owned_exec> execs;
  auto const add_exec = [&] {
    execs.push_back(test::instantiate(graph_of(stream, kernels).get()));
    test::must(cudaGraphLaunch(execs.back(), stream));
  };
  exec_set set;
  auto const add_member = [&] { set.launch(set.add(graph_of(stream, kernels)), stream); };
  auto& counters = state.counters;
  repeat(state, [&] {
    return us_of([&] {
      counters["one_exec_kib"] = kib_taken_by(add_exec, 1);
      counters["set_kib"] = kib_taken_by(add_member, graphs_in_figures);
      counters["execs_kib"] = kib_taken_by(add_exec, graphs_in_figures);
    });
  });
}

void register_exec_sets(settings const& how) {
  // First: later execs get memory that earlier ones had.
  int const most = how.choose(512, 8);
  add("exec_set/memory", {1, 1, benchmark::kMillisecond}, &measure_exec_memory, most);
  for (int const kernels : {8, 64, 512}) {
    if (kernels > most) continue;
    for (std::size_t const graphs : {1U, 2U}) {
      add_launches(
          how,
          std::string("exec_set/") + (graphs == 1 ? "same" : "switch") +
              "/kernels:" + std::to_string(kernels),
          [=](cudaStream_t stream) { return updated_plainly(stream, kernels, graphs); },
          [=](cudaStream_t stream) { return in_a_set(stream, kernels, graphs); }, launches_on_gpu);
    }
  }
}

// Whether launches that share scratch run one after another, on several streams.
//
// Each stream has a thread and graphs of its own. A graph writes its number all over the scratch,
// waits, and reads it back: wrong_values counts what another graph overwrote meanwhile. Launches of
// one graph are ordered by CUDA, so a graph's number finds all that a launch's number would. In an
// arena with plain launches there must be such values: the detector works.

void run_races(benchmark::State& state, way_arm const& which, int streams, int rounds,
               int launches) {
  constexpr std::size_t values = 1024, graphs_of_a_stream = 4;
  constexpr std::uint64_t wait_us = 2;
  test::device_ints const wrong;
  scratch_way const way = which.setup(values * sizeof(int));
  std::vector<launch_call> execs;
  test::owned_stream const capturing = test::make_stream();
  for (int number = 1; execs.size() < graphs_of_a_stream * static_cast<std::size_t>(streams);
       ++number) {
    execs.push_back(way.exec_of(capturing, [&] {
      auto* const scratch = static_cast<int*>(way.claim(capturing, values * sizeof(int)));
      test::must(test::launch_fill(capturing, scratch, values, number));
      test::must(test::launch_sleep(capturing, wait_us));
      test::must(test::launch_check(capturing, scratch, values, number, wrong.data()));
      way.release(capturing, scratch);
    }));
  }
  thread_team team(streams, [&](std::size_t thread) -> thread_team::part {
    std::size_t const first = graphs_of_a_stream * thread;
    auto const mine = std::make_shared<test::owned_stream>(test::make_stream());
    return [&, mine, first, next = std::minstd_rand(first + 1)]() mutable {
      for (int i = 0; i < launches; ++i) execs[first + next() % graphs_of_a_stream](*mine);
    };
  });
  repeat(state, [&] {
    double seconds = 0;
    for (int i = 0; i < rounds; ++i) seconds += team.round();
    return seconds * 1e6 / rounds / launches;
  });
  state.counters["wrong_values"] = wrong.read().front();
}

void register_races(settings const& how) {
  constexpr int launches_in_all = 100'000;
  int const launches = how.choose(500, 10);  // of a thread, in a round
  for (int const streams : {2, 8}) {
    int const in_a_round = streams * launches;
    int const rounds = how.choose((launches_in_all + in_a_round - 1) / in_a_round, 2);
    for (char const* const name : {"shared", "arena"}) {
      way_arm const which = arm_named(name, ways);
      add("footprint_races/" + std::string(name) + "/streams:" + std::to_string(streams), {1, 1},
          &run_races, which, streams, rounds, launches);
    }
  }
}

}  // namespace

void register_all(settings const& how) {
  register_exec_sets(how);
  for (char const* const name :
       {"arena_again", "arena_recorded", "shared", "lasting", "memory_nodes", "private"}) {
    way_arm const which = arm_named(name, ways);
    if (which.setup == nullptr) continue;
    for (std::size_t const graphs : {1U, 4U, 16U, 64U, 256U}) {
      add_family(how, which, false, graphs);
    }
    add_family(how, which, true, graphs_in_figures);
  }
  register_mixed(how);
  register_kept(how);
  register_parked(how);
  register_races(how);
}

}  // namespace escrow::bench
