// Twelve threads, each with a stream, a capture and an exec of its own: a round is a row of
// launches on each of them, and takes as long as the slowest. Rounds alternate with those of as
// many threads with bare graphs.
#include <benchmark/benchmark.h>

#include <memory>
#include <string>
#include <vector>

#include "forms.hpp"
#include "handles.hpp"
#include "measures.hpp"
#include "registering.hpp"
#include "settings.hpp"
#include "status.hpp"
#include "thread_team.hpp"
#include "times.hpp"

namespace escrow::bench {
namespace {

struct launching_thread {
  explicit launching_thread(named_form const& which) : form(which.make(stream, line_of_8)) {
    form->upload(stream);
    test::must(cudaStreamSynchronize(stream));
  }

  void launch(int times) const {
    for (int i = 0; i < times; ++i) form->launch(stream);
    test::must(cudaStreamSynchronize(stream));
  }

  test::owned_stream stream = test::make_stream();
  std::unique_ptr<relaunch_form> form;
};

auto launching(named_form const& which, int launches) {
  return [=]() -> thread_team::part {
    auto const mine = std::make_shared<launching_thread>(which);
    return {.timed = [=] { mine->launch(launches); }, .after = [] {}};
  };
}

void run(benchmark::State& state, named_form const& which, int threads, int launches) {
  thread_team bare(threads, launching(form_named("bare"), launches));
  thread_team form(threads, launching(which, launches));
  for (thread_team* const each : {&bare, &form}) static_cast<void>(each->round());
  std::vector<double> shares, bare_us;
  for (auto _ : state) {
    require_time();
    double of_bare = bare.round();
    double const of_form = (form.round() + form.round()) / 2;
    of_bare = (of_bare + bare.round()) / 2;
    state.SetIterationTime(of_form / launches);
    shares.push_back(of_bare / of_form);
    bare_us.push_back(of_bare * 1e6 / launches);
  }
  state.counters["throughput_of_bare"] = quantile(shares, 0.5);
  state.counters["bare_us"] = quantile(bare_us, 0.5);
  state.counters["on_threads"] = threads;
}

}  // namespace

void register_threads(settings const& how) {
  int const threads = how.choose(12, 4, 2);
  int const launches = how.choose(400, 8, 2);
  for (char const* const name : {"bare_again", "escrow", "user_object"}) {
    named_form const form = form_named(name);
    add("threads12/" + std::string(name), how.choose(5, 1, 1), benchmark::kMicrosecond,
        [=](benchmark::State& state) { run(state, form, threads, launches); })
        ->Repetitions(repetitions(how));
  }
}

}  // namespace escrow::bench
