// How long launches take, one by one at a steady pace, while other threads create and destroy
// graphs and free memory. Escrow's exec beside Escrow's churn takes turns with a bare exec beside
// the same churn in plain CUDA; the other arms tell what of it is the exec's, the event record's,
// and the churn's.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "forms.hpp"
#include "graph_churn.hpp"
#include "handles.hpp"
#include "measures.hpp"
#include "registering.hpp"
#include "settings.hpp"
#include "status.hpp"
#include "times.hpp"

namespace escrow::bench {
namespace {

constexpr std::chrono::microseconds pace{20};  // more than twice what the GPU needs for a launch
constexpr int warm_up = 200;

// One sort of exec, launched beside one sort of churn.
class disturbed {
 public:
  disturbed(char const* name, std::unique_ptr<graph_churn> (*churn)(), cudaStream_t stream)
      : stream_(stream), form_(form_named(name).make(stream, line_of_8)), churn_(churn) {
    form_->upload(stream);
    test::must(cudaStreamSynchronize(stream));
  }

  // Adds the host times of `launches` launches.
  void take(int launches) {
    auto const beside = churn_();
    auto const begin = clock::now();
    times_us_.reserve(times_us_.size() + static_cast<std::size_t>(launches));
    auto next = clock::now();
    for (int i = -warm_up; i < launches; ++i) {
      while (clock::now() < next) {
      }
      auto const start = clock::now();
      form_->launch(stream_);
      auto const end = clock::now();
      if (i >= 0)
        times_us_.push_back(std::chrono::duration<double, std::micro>(end - start).count());
      next = std::max(next + pace, end);  // what is late is not made up for
    }
    seconds_ += seconds_since(begin);
    graphs_ += beside->end();
    test::must(cudaStreamSynchronize(stream_));
  }

  [[nodiscard]] double at_us(double share) { return quantile(times_us_, share); }
  [[nodiscard]] double graphs_per_s() const { return graphs_ / seconds_; }
  [[nodiscard]] std::size_t samples() const { return times_us_.size(); }

 private:
  cudaStream_t stream_;
  std::unique_ptr<relaunch_form> form_;
  std::unique_ptr<graph_churn> (*churn_)();
  std::vector<double> times_us_;
  double seconds_ = 0;
  int graphs_ = 0;
};

void report(benchmark::State& state, std::string const& prefix, disturbed& from) {
  state.counters[prefix + "p50_us"] = from.at_us(0.5);
  state.counters[prefix + "p99_us"] = from.at_us(0.99);
  state.counters[prefix + "p999_us"] = from.at_us(0.999);
  state.counters[prefix + "max_us"] = from.at_us(1.0);
  state.counters[prefix + "graphs_per_s"] = from.graphs_per_s();
}

void run(benchmark::State& state, char const* name, std::unique_ptr<graph_churn> (*churn)(),
         int launches) {
  test::owned_stream const stream = test::make_stream();
  disturbed bare("bare", &plain_churn, stream);
  disturbed form(name, churn, stream);
  for (auto _ : state) {
    require_time();
    bare.take(launches);
    form.take(2 * launches);
    bare.take(launches);
    state.SetIterationTime(form.at_us(0.999) * 1e-6);
  }
  report(state, "", form);
  report(state, "bare_", bare);
  state.counters["p999_of_bare"] = form.at_us(0.999) / bare.at_us(0.999);
  state.counters["samples"] = static_cast<double>(form.samples());
}

}  // namespace

void register_interference(settings const& how) {
  int const launches = how.choose(5'000, 200, 20);
  struct arm {
    char const* name;
    char const* form;
    std::unique_ptr<graph_churn> (*churn)();
  };
  for (arm const& each : {
           arm{"bare_again", "bare_again", &plain_churn},
           arm{"escrow", "escrow", &escrow_churn},
           arm{"bare_recorded", "bare_recorded", &plain_churn},
           arm{"escrow_beside_plain_churn", "escrow", &plain_churn},
           arm{"bare_beside_escrow_churn", "bare", &escrow_churn},
       }) {
    add("interference/" + std::string(each.name), 1, benchmark::kMicrosecond,
        [=](benchmark::State& state) { run(state, each.form, each.churn, launches); })
        ->Repetitions(repetitions(how));
  }
}

}  // namespace escrow::bench
