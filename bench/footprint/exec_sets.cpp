// One exec for many graphs of equal shape.
//
// exec_set/same/kernels:K: launches of one graph of a set, beside plain launches of its exec.
// exec_set/switch/kernels:K: launches of two graphs in turn, beside a plain update before each
// launch. exec_set/memory: device memory of 64 graphs of 512 kernels in a set, beside one exec and
// 64, and the time until each was launched once.

#include "graphs.hpp"
#include "scratch_ways.hpp"

namespace escrow::bench {
namespace {

constexpr std::size_t graphs_in_set = 64;

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

void add_form(settings const& how, char const* name, int kernels, std::size_t graphs) {
  add_launches(
      how, std::string("exec_set/") + name + "/kernels:" + std::to_string(kernels),
      [=](cudaStream_t stream) { return updated_plainly(stream, kernels, graphs); },
      [=](cudaStream_t stream) { return in_a_set(stream, kernels, graphs); },
      {.instances = 3, .row = 400, .steady = 200, .bursts = 4});
}

// What the device has less of after `make` than before, in KiB.
template <class Make>
double kib_taken_by(Make make) {
  std::size_t before = 0, after = 0, total = 0;
  test::must(cudaMemGetInfo(&before, &total));
  make();
  test::must(cudaDeviceSynchronize());
  test::must(cudaMemGetInfo(&after, &total));
  return (static_cast<double>(before) - static_cast<double>(after)) / 1024;
}

void measure_memory(benchmark::State& state, int kernels) {
  test::owned_stream const stream = test::make_stream();
  // All stay until the end: CUDA keeps what an exec had for the next one.
  std::vector<test::owned_exec> execs;
  auto const add_exec = [&] {
    execs.push_back(test::instantiate(graph_of(stream, kernels).get()));
    test::must(cudaGraphLaunch(execs.back(), stream));
  };
  exec_set set;
  auto const add_member = [&] { set.launch(set.add(graph_of(stream, kernels)), stream); };
  auto const us_of_all = [](auto const& add_one) {
    return us_of([&] {
      for (std::size_t i = 0; i < graphs_in_set; ++i) add_one();
    });
  };
  auto& counters = state.counters;
  repeat(state, [&] {
    double us = 0;
    counters["one_exec_kib"] = kib_taken_by(add_exec);
    counters["set_kib"] = kib_taken_by([&] { us = us_of_all(add_member); });
    counters["execs_kib"] = kib_taken_by([&] { counters["execs_us"] = us_of_all(add_exec); });
    return us;
  });
  counters["execs_of_set"] = static_cast<double>(set.stats().execs);
}

}  // namespace

void register_exec_sets(settings const& how) {
  // First: later execs get memory that earlier ones had.
  int const most = how.choose(512, 8);
  add("exec_set/memory", {1, 1, benchmark::kMillisecond}, &measure_memory, most);
  for (int const kernels : {8, 64, 512}) {
    if (kernels > most) continue;
    add_form(how, "same", kernels, 1);
    add_form(how, "switch", kernels, 2);
  }
}

}  // namespace escrow::bench
