// What it costs to find out which graph it is that is instantiated: Escrow's own, and a handle of a
// graph that was captured with plain calls, small and large, over a plain cudaGraphInstantiate.
// Each graph has one claim.
#include <benchmark/benchmark.h>

#include <escrow/deleter.hpp>
#include <escrow/graph.hpp>
#include <escrow/pool.hpp>
#include <optional>
#include <string>

#include "capture_measures.hpp"
#include "differences.hpp"
#include "handles.hpp"
#include "kernels.hpp"
#include "registering.hpp"
#include "status.hpp"

namespace escrow::bench {
namespace {

struct graphs {
  void enqueue(bool with_claim, cudaStream_t on, int nodes) {
    std::optional<lease<int>> claimed;
    if (with_claim) claimed.emplace(from.claim(on));
    for (int i = 0; i < nodes; ++i) test::must(test::launch_tiny(on));
  }
  [[nodiscard]] test::owned_graph plain(bool with_claim, int nodes) {
    test::owned_graph graph;
    test::must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    enqueue(with_claim, stream, nodes);
    test::must(cudaStreamEndCapture(stream, graph.out()));
    return graph;
  }
  [[nodiscard]] graph ours(int nodes) {
    return capture(stream_ref(stream.get()),
                   [&](stream_ref on) { enqueue(true, on.get(), nodes); });
  }
  void settle() { test::must(deleter.drain_for(settle_max), "the deleter drains"); }

  test::owned_stream stream = test::make_stream();
  escrow::deleter deleter;
  resource_pool<int> from{{.slots_max = 64, .label = "identity", .deleter = &deleter},
                          [] { return 0; }};
};

// `make(nodes)` makes the graph that Escrow instantiates, from `of(graph)`.
template <class Make, class Of>
void run(benchmark::State& state, graphs& of, int nodes, Make make, Of handle_of) {
  differences times;
  for (auto _ : state) {
    require_time();
    {
      test::owned_graph const bare = of.plain(false, nodes);
      auto const graph = make(nodes);
      test::owned_exec plain_exec;
      std::optional<graph_exec> exec;
      state.SetIterationTime(times.add([&] { plain_exec = test::instantiate(bare); },
                                       [&] { exec.emplace(handle_of(graph)); }));
    }
    of.settle();
  }
  times.report(state);
}

void plain_handle(benchmark::State& state, int nodes) {
  graphs of;
  run(
      state, of, nodes, [&](int count) { return of.plain(true, count); },
      [](test::owned_graph const& captured) { return captured.get(); });
}

void own_graph(benchmark::State& state, int nodes) {
  graphs of;
  run(
      state, of, nodes, [&](int count) { return of.ours(count); },
      [](graph const& captured) -> graph const& { return captured; });
}

}  // namespace

void register_identity(settings const& how) {
  for (int const nodes : {10, 1'000, how.choose(10'000, 10'000, 2'000)}) {
    int const iterations = nodes > 1'000 ? how.choose(3, 1, 1) : how.choose(20, 4, 2);
    std::string const suffix = "/nodes:" + std::to_string(nodes);
    add("capture/identity/plain_handle" + suffix, iterations, benchmark::kMicrosecond,
        [=](benchmark::State& state) { plain_handle(state, nodes); })
        ->Repetitions(repetitions(how));
    add("capture/identity/own_graph" + suffix, iterations, benchmark::kMicrosecond,
        [=](benchmark::State& state) { own_graph(state, nodes); })
        ->Repetitions(repetitions(how));
  }
}

}  // namespace escrow::bench
