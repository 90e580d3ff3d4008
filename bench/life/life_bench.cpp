// SPDX-License-Identifier: Apache-2.0
// What Escrow adds to the whole life of a graph, and to its first instantiation, beside plain CUDA
// calls: turns and counters as in the capture bench.
//
// In a program of their own: once a process has made graphs of thousands of nodes, plain CUDA takes
// ten times as long for them.
#include "graphs.hpp"
#include "thread_team.hpp"

namespace escrow::bench {
namespace {

constexpr int kernels = 8;

void plain_life(cudaStream_t stream) {
  auto const graph = captured(stream, [&] { enqueue_row(stream, kernels); });
  test::owned_exec const exec = test::instantiate(graph);
  test::must(cudaGraphLaunch(exec, stream));
}

void escrow_life(pooled_ints& from, cudaStream_t stream) {
  graph const captured = capture(stream_ref(stream), [&](stream_ref on) {
    for (int i = 0; i < kernels; ++i) enqueue_claim(from, on.get());
  });
  graph_exec exec(captured);
  exec.launch(stream);
}

// A graph's whole life: captured, instantiated, launched and destroyed, by several threads with a
// stream each. Eight kernels with a claim each, over the same with plain CUDA and without claims.
// Rounds end with all launches done, which is not timed.
void whole(benchmark::State& state, int threads, int graphs) {
  pooled_ints from(1024);
  auto const living = [=](auto life) {
    return [=](std::size_t) -> thread_team::part {
      return [=, stream = std::make_shared<test::owned_stream>(test::make_stream())] {
        for (int i = 0; i < graphs; ++i) life(stream->get());
      };
    };
  };
  thread_team plain(threads, living(&plain_life));
  thread_team ours(threads, living([&](cudaStream_t stream) { escrow_life(from, stream); }));
  for (thread_team* const each : {&plain, &ours}) static_cast<void>(each->round());
  turns taken;
  repeat(state, [&] {
    auto const us_a_graph = [&](thread_team& team) { return team.round() * 1e6 / graphs; };
    double const us =
        taken.add_around([&] { return us_a_graph(plain); }, [&] { return us_a_graph(ours); });
    settle(from.deleter);
    return us;
  });
  taken.report(state);
}

}  // namespace

void register_all(settings const& how) {
  int const repetitions = how.choose(7, 1);
  for (int const threads : {1, 8}) {
    add("capture/whole/on_threads:" + std::to_string(threads), {how.choose(15, 1), repetitions},
        &whole, threads, how.choose(32, 2));
  }
  for (int const owners : {64, how.choose(8192, 512)}) {
    int const often = owners > 64 ? how.choose(3, 1) : how.choose(30, 2);
    add("capture/instantiate/owners:" + std::to_string(owners), {often, repetitions},
        &measure_instantiation, owners);
  }
}

}  // namespace escrow::bench
