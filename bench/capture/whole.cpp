// A graph's whole life: captured, instantiated, launched and destroyed, by one thread and by eight.
// Eight kernels with a claim each, over the same with plain CUDA and without claims.
#include <benchmark/benchmark.h>

#include <escrow/deleter.hpp>
#include <escrow/graph.hpp>
#include <escrow/pool.hpp>
#include <memory>
#include <string>

#include "capture_measures.hpp"
#include "differences.hpp"
#include "handles.hpp"
#include "kernels.hpp"
#include "registering.hpp"
#include "status.hpp"
#include "thread_team.hpp"

namespace escrow::bench {
namespace {

constexpr int kernels = 8;

using pool = resource_pool<int>;

void plain_life(cudaStream_t stream) {
  test::owned_graph graph;
  test::must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < kernels; ++i) test::must(test::launch_tiny(stream));
  test::must(cudaStreamEndCapture(stream, graph.out()));
  test::owned_exec const exec = test::instantiate(graph);
  test::must(cudaGraphLaunch(exec, stream));
}

void escrow_life(pool& from, cudaStream_t stream) {
  graph const captured = capture(stream_ref(stream), [&](stream_ref on) {
    for (int i = 0; i < kernels; ++i) {
      lease<int> const claimed = from.claim(on);
      test::must(test::launch_tiny(on.get()));
    }
  });
  graph_exec exec(captured);
  exec.launch(stream);
}

// Each thread has a stream; rounds end with all its launches done, which is not timed.
template <class Life>
auto living(Life life, int graphs) {
  return [=]() -> thread_team::part {
    auto const stream = std::make_shared<test::owned_stream>(test::make_stream());
    return {.timed =
                [=] {
                  for (int i = 0; i < graphs; ++i) life(stream->get());
                },
            .after = [=] { test::must(cudaStreamSynchronize(*stream)); }};
  };
}

void run(benchmark::State& state, int threads, int graphs) {
  escrow::deleter deleter;
  pool from({.slots_max = 1024, .label = "whole", .deleter = &deleter}, [] { return 0; });
  thread_team plain(threads, living([](cudaStream_t stream) { plain_life(stream); }, graphs));
  thread_team ours(threads,
                   living([&](cudaStream_t stream) { escrow_life(from, stream); }, graphs));
  for (thread_team* const each : {&plain, &ours}) static_cast<void>(each->round());
  differences times;
  double const us = 1e6 / graphs;
  for (auto _ : state) {
    require_time();
    double of_plain = plain.round();
    double const of_ours = (ours.round() + ours.round()) / 2;
    of_plain = (of_plain + plain.round()) / 2;
    times.note(of_plain * us, of_ours * us);
    state.SetIterationTime(of_ours / graphs);
    test::must(deleter.drain_for(settle_max), "the deleter drains");
  }
  times.report(state);
  state.counters["on_threads"] = threads;
}

}  // namespace

void register_whole(settings const& how) {
  int const graphs = how.choose(32, 8, 2);
  for (int const threads : {1, 8}) {
    add("capture/whole/on_threads:" + std::to_string(threads), how.choose(15, 3, 1),
        benchmark::kMicrosecond, [=](benchmark::State& state) { run(state, threads, graphs); })
        ->Repetitions(repetitions(how));
  }
}

}  // namespace escrow::bench
