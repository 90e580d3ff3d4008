// One exec for many graphs of equal shape.
//
// exec_set/same/kernels:K: launches of one graph of a set, beside plain launches of its exec.
// exec_set/switch/kernels:K: launches of two graphs in turn, beside a plain update before each
// launch. exec_set/memory: device memory of 64 graphs of 512 kernels in a set, beside one exec and
// 64, and the time until each was launched once.
#include <escrow/graph.hpp>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "forms.hpp"
#include "graphs.hpp"
#include "scratch_ways.hpp"
#include "timing.hpp"

namespace escrow::bench {
namespace {

constexpr std::size_t graphs_in_set = 64;

graph graph_of(cudaStream_t stream, int kernels) {
  return capture(stream_ref(stream), [kernels](stream_ref on) { enqueue_row(on.get(), kernels); });
}

// Launches the graphs of a set in turn.
relaunch_form in_a_set(cudaStream_t stream, int kernels, std::size_t graphs) {
  struct all {
    exec_set set;
    std::vector<exec_set::member> members;
    std::size_t launched = 0;
  };
  auto const made = std::make_shared<all>();
  while (made->members.size() < graphs) {
    made->members.push_back(made->set.add(graph_of(stream, kernels)));
  }
  relaunch_form form;
  form.launch = [made](cudaStream_t on) {
    made->set.launch(made->members[made->launched++ % made->members.size()], on);
  };
  return form;
}

// The same by plain calls.
relaunch_form updated_plainly(cudaStream_t stream, int kernels, std::size_t graphs) {
  struct all {
    std::vector<graph> sources;
    test::owned_exec exec;
    std::size_t launched = 0;
  };
  auto const made = std::make_shared<all>();
  while (made->sources.size() < graphs) made->sources.push_back(graph_of(stream, kernels));
  made->exec = test::instantiate(made->sources.front().get());
  relaunch_form form;
  form.launch = [made](cudaStream_t on) {
    std::size_t const next = made->launched++ % made->sources.size();
    cudaGraphExecUpdateResultInfo result{};
    if (made->sources.size() > 1) {
      test::must(cudaGraphExecUpdate(made->exec, made->sources[next].get(), &result));
    }
    test::must(cudaGraphLaunch(made->exec, on));
  };
  return form;
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
  std::size_t before = 0;
  std::size_t after = 0;
  std::size_t total = 0;
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
  auto const all_of = [](auto const& add_one) {
    return [&] {
      for (std::size_t i = 0; i < graphs_in_set; ++i) add_one();
    };
  };
  for (auto _ : state) {
    require_time();
    state.counters["one_exec_kib"] = kib_taken_by(add_exec);
    double us = 0;
    state.counters["set_kib"] = kib_taken_by([&] { us = us_of(all_of(add_member)); });
    state.SetIterationTime(us * 1e-6);
    state.counters["execs_kib"] = kib_taken_by([&] { us = us_of(all_of(add_exec)); });
    state.counters["execs_us"] = us;
  }
  state.counters["execs_of_set"] = static_cast<double>(set.stats().execs);
}

}  // namespace

void register_exec_sets(settings const& how) {
  // First: later execs get memory that earlier ones had.
  int const most = how.choose(512, 8, 8);
  add("exec_set/memory", {1, 1}, benchmark::kMillisecond,
      [=](benchmark::State& state) { measure_memory(state, most); });
  for (int const kernels : {8, 64, 512}) {
    if (kernels > most) continue;
    add_form(how, "same", kernels, 1);
    add_form(how, "switch", kernels, 2);
  }
}

}  // namespace escrow::bench
