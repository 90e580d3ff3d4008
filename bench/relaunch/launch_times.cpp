// Rows and bursts of launches.
#include "launch_times.hpp"

#include <algorithm>
#include <utility>

#include "status.hpp"
#include "times.hpp"

namespace escrow::bench {
namespace {

constexpr int burst_max = 16;

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
  values.reserve(all.size());
  for (times const& each : all) values.push_back(value(each));
  return quantile(values, 0.5);
}

}  // namespace

pair_of_forms::pair_of_forms(cudaStream_t on, std::unique_ptr<relaunch_form> bare_one,
                             std::unique_ptr<relaunch_form> other)
    : stream(on), bare(std::move(bare_one)), form(std::move(other)) {
  for (auto const* each : {&bare, &form}) (*each)->upload(stream);
  test::must(cudaStreamSynchronize(stream));
}

std::size_t pair_of_forms::end() {
  std::size_t const owed = form->end();
  return owed + bare->end();
}

double relaunch_times::add(pair_of_forms& pair) {
  bool const is_bare_first = rows_.size() % 2 == 0;
  auto const row = [&](relaunch_form& each) { return row_us(each, pair.stream, size_.row); };
  auto const burst = [&](relaunch_form& each, int launches) {
    return burst_us(each, pair.stream, launches);
  };
  for (auto const* each : {&pair.bare, &pair.form}) {  // warms up
    static_cast<void>(row_us(**each, pair.stream, std::max(size_.row / 4, 1)));
  }
  rows_.push_back(in_turns(pair, is_bare_first, row));
  steady_.push_back(in_turns(pair, is_bare_first,
                             [&](relaunch_form& each) { return burst(each, size_.steady); }));
  for (int i = 0; i < size_.bursts; ++i) {
    bursts_.push_back(in_turns(pair, is_bare_first, [&](relaunch_form& each) {
      return burst(each, std::min(burst_max, size_.steady));
    }));
  }
  return rows_.back().form * 1e-6;
}

void relaunch_times::report(benchmark::State& state) const {
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
  state.counters["host_launches"] = size_.steady;
}

}  // namespace escrow::bench
