// What a launch costs, again and again: bare graphs, graphs that hold something, and no graph.
//
// Each form takes turns with a bare graph on the same stream, and what counts is its share of that
// one's figures: what drifts meanwhile drifts for both. Both are made anew in every iteration,
// since two execs of like graphs differ by chance. bare and bare_again are the same: what lies
// between them and 1 is noise.
//
// The time is microseconds per launch in a long row of launches with one synchronisation at its
// end. The host's part is the time to enqueue, on an idle stream: `host_us` in a burst of up to 200
// launches, which an exec with a user object does not get through without blocking and a bare one
// does; `host_burst_us` in a burst of 16, which none blocks in.
#include <benchmark/benchmark.h>

#include <string>

#include "forms.hpp"
#include "handles.hpp"
#include "launch_times.hpp"
#include "measures.hpp"
#include "registering.hpp"
#include "settings.hpp"

namespace escrow::bench {
namespace {

void run(benchmark::State& state, named_form const& which, shape const& of, sizes const& size) {
  test::owned_stream const stream = test::make_stream();
  relaunch_times taken(size);
  std::size_t slots_held = 0;
  std::size_t owed = 0;
  for (auto _ : state) {
    require_time();
    pair_of_forms pair(stream, form_named("bare").make(stream, of), which.make(stream, of));
    state.SetIterationTime(taken.add(pair));
    slots_held = pair.form->slots_held();
    for (auto const& [name, count] : pair.form->facts()) state.counters[name] = count;
    owed += pair.end();
  }
  taken.report(state);
  state.counters["slots_held"] = static_cast<double>(slots_held);
  state.counters["destructors_owed"] = static_cast<double>(owed);
}

void register_form(settings const& how, named_form const& form, shape const& of, sizes const& gpu) {
  sizes const size = gpu.chosen(how);
  add("relaunch/" + std::string(form.name) + "/" + of.name, size.instances, benchmark::kMicrosecond,
      [=](benchmark::State& state) { run(state, form, of, size); })
      ->Repetitions(repetitions(how));
}

struct sized_shape {
  shape of;
  sizes gpu;  // so that a row takes about 5 ms of a GPU that needs 0.7 us for a kernel
};

constexpr sized_shape shapes[]{
    {{"kernels:1", 1, 1}, {.instances = 10, .row = 2000, .steady = 200, .bursts = 8}},
    {line_of_8, {.instances = 6, .row = 600, .steady = 200, .bursts = 8}},
    {{"kernels:64", 1, 64}, {.instances = 3, .row = 100, .steady = 200, .bursts = 2}},
    {{"kernels:512", 1, 512}, {.instances = 1, .row = 16, .steady = 32, .bursts = 1}},
    {{"fork4", 4, 16}, {.instances = 4, .row = 200, .steady = 200, .bursts = 2}},
};

}  // namespace

void register_all(settings const& how) {
  for (sized_shape const& each : shapes) {
    for (named_form const& form : main_forms()) register_form(how, form, each.of, each.gpu);
  }
  register_form(how, escrow_4096_objects(), line_of_8, shapes[1].gpu);
  constexpr sizes few_8{.instances = 1, .row = 200, .steady = 100, .bursts = 4};
  constexpr sizes few_64{.instances = 1, .row = 50, .steady = 50, .bursts = 1};
  for (auto const forms : {node_forms(), eager_forms()}) {
    for (named_form const& form : forms) {
      register_form(how, form, line_of_8, few_8);
      register_form(how, form, shapes[2].of, few_64);
    }
  }
  register_run_ahead(how);
  register_threads(how);
  register_objects(how);
  register_interference(how);
}

}  // namespace escrow::bench
