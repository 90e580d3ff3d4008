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

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "forms.hpp"
#include "handles.hpp"
#include "measures.hpp"
#include "registering.hpp"
#include "settings.hpp"
#include "status.hpp"
#include "times.hpp"

namespace escrow::bench {
namespace {

constexpr int burst_max = 16;

struct sizes {
  int instances;  // pairs of execs in one repetition
  int row;        // launches in a row
  int steady;     // launches in a long burst
  int bursts;     // short ones for each pair
};

// The same work, done by a bare graph and by the form in question.
struct times {
  double bare = 0;
  double form = 0;
  [[nodiscard]] double share() const { return form / bare; }
};

struct pair_of_forms {
  pair_of_forms(cudaStream_t on, named_form const& which, shape const& of)
      : stream(on), bare(form_named("bare").make(on, of)), form(which.make(on, of)) {
    for (auto const* each : {&bare, &form}) (*each)->upload(stream);
    test::must(cudaStreamSynchronize(stream));
  }

  cudaStream_t stream;
  std::unique_ptr<relaunch_form> bare;
  std::unique_ptr<relaunch_form> form;
};

double row_us(relaunch_form& form, cudaStream_t stream, int launches) {
  auto const begin = clock::now();
  for (int i = 0; i < launches; ++i) form.launch(stream);
  test::must(cudaStreamSynchronize(stream));
  return seconds_since(begin) * 1e6 / launches;
}

double burst_us(relaunch_form& form, cudaStream_t stream, int launches) {
  auto const begin = clock::now();
  for (int i = 0; i < launches; ++i) form.launch(stream);
  double const result = seconds_since(begin) * 1e6 / launches;
  test::must(cudaStreamSynchronize(stream));
  return result;
}

// Measures one, the other twice, and the first again: both have the same part of any drift.
template <class Measure>
times in_turns(pair_of_forms& pair, bool is_bare_first, Measure measure) {
  relaunch_form& first = is_bare_first ? *pair.bare : *pair.form;
  relaunch_form& second = is_bare_first ? *pair.form : *pair.bare;
  double of_first = measure(first);
  double const of_second = (measure(second) + measure(second)) / 2;
  of_first = (of_first + measure(first)) / 2;
  return is_bare_first ? times{of_first, of_second} : times{of_second, of_first};
}

double median_of(std::vector<times> const& all, double (*value)(times const&)) {
  std::vector<double> values;
  for (times const& each : all) values.push_back(value(each));
  return quantile(values, 0.5);
}

// What the pairs of one repetition took.
class relaunch_times {
 public:
  // Returns the seconds that a launch of the form took in a row.
  double add(pair_of_forms& pair, sizes const& size) {
    bool const is_bare_first = rows_.size() % 2 == 0;
    auto const row = [&](relaunch_form& each) { return row_us(each, pair.stream, size.row); };
    auto const burst = [&](relaunch_form& each, int launches) {
      return burst_us(each, pair.stream, launches);
    };
    for (auto const* each : {&pair.bare, &pair.form}) {  // warms up
      static_cast<void>(row_us(**each, pair.stream, std::max(size.row / 4, 1)));
    }
    rows_.push_back(in_turns(pair, is_bare_first, row));
    steady_.push_back(in_turns(pair, is_bare_first,
                               [&](relaunch_form& each) { return burst(each, size.steady); }));
    for (int i = 0; i < size.bursts; ++i) {
      bursts_.push_back(in_turns(pair, is_bare_first, [&](relaunch_form& each) {
        return burst(each, std::min(burst_max, size.steady));
      }));
    }
    return rows_.back().form * 1e-6;
  }

  void report(benchmark::State& state) const {
    auto const bare = [](times const& each) { return each.bare; };
    auto const form = [](times const& each) { return each.form; };
    auto const share = [](times const& each) { return each.share(); };
    state.counters["bare_us"] = median_of(rows_, bare);
    state.counters["host_us"] = median_of(steady_, form);
    state.counters["bare_host_us"] = median_of(steady_, bare);
    state.counters["host_burst_us"] = median_of(bursts_, form);
    state.counters["bare_host_burst_us"] = median_of(bursts_, bare);
    state.counters["throughput_of_bare"] = 1 / median_of(rows_, share);
    state.counters["host_of_bare"] = median_of(steady_, share);
    state.counters["host_burst_of_bare"] = median_of(bursts_, share);
  }

 private:
  std::vector<times> rows_;
  std::vector<times> steady_;
  std::vector<times> bursts_;
};

void run(benchmark::State& state, named_form const& which, shape const& of, sizes const& size) {
  test::owned_stream const stream = test::make_stream();
  relaunch_times taken;
  std::size_t slots_held = 0;
  std::size_t owed = 0;
  for (auto _ : state) {
    require_time();
    pair_of_forms pair(stream, which, of);
    state.SetIterationTime(taken.add(pair, size));
    slots_held = pair.form->slots_held();
    for (auto const& [name, count] : pair.form->facts()) state.counters[name] = count;
    owed += pair.form->end() + pair.bare->end();
  }
  taken.report(state);
  state.counters["host_launches"] = size.steady;
  state.counters["slots_held"] = static_cast<double>(slots_held);
  state.counters["destructors_owed"] = static_cast<double>(owed);
}

void register_form(settings const& how, named_form const& form, shape const& of, sizes const& gpu) {
  sizes const size{.instances = how.choose(gpu.instances, 1, 1),
                   .row = how.choose(gpu.row, 16, 2),
                   .steady = how.choose(gpu.steady, 16, 2),
                   .bursts = how.choose(gpu.bursts, 1, 1)};
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
