// What many owners cost: retiring them in one capture, and instantiating their graph.
#include <benchmark/benchmark.h>

#include <escrow/deleter.hpp>
#include <escrow/graph.hpp>
#include <memory>
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

constexpr int kernels = 8;

struct graphs {
  void enqueue() const {
    for (int i = 0; i < kernels; ++i) test::must(test::launch_tiny(stream));
  }
  [[nodiscard]] test::owned_graph plain() const {
    test::owned_graph graph;
    test::must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    enqueue();
    test::must(cudaStreamEndCapture(stream, graph.out()));
    return graph;
  }
  [[nodiscard]] graph ours(int owners) {
    return capture(stream_ref(stream.get()), [&](stream_ref capturing) {
      for (int i = 0; i < owners; ++i) deleter.retire(capturing, std::make_unique<int>(i));
      enqueue();
    });
  }
  void settle() { test::must(deleter.drain_for(settle_max), "the deleter drains"); }

  test::owned_stream stream = test::make_stream();
  escrow::deleter deleter;
};

// For each owner, beside a capture without any.
void retire(benchmark::State& state, int owners) {
  graphs make;
  { graph const first = make.ours(owners); }
  make.settle();
  differences times;
  for (auto _ : state) {
    require_time();
    test::owned_graph plain;
    std::optional<graph> ours;
    state.SetIterationTime(
        times.add([&] { plain = make.plain(); }, [&] { ours.emplace(make.ours(owners)); }, owners) /
        owners);
    ours.reset();
    make.settle();
  }
  times.report(state);
}

// For the whole graph. The first exec of a graph may cost more than later ones.
void instantiate(benchmark::State& state, int owners) {
  graphs make;
  differences first, later;
  for (auto _ : state) {
    require_time();
    {
      test::owned_graph const plain = make.plain();
      graph const ours = make.ours(owners);
      test::owned_exec plain_exec, plain_again;
      std::optional<graph_exec> exec, again;
      state.SetIterationTime(
          first.add([&] { plain_exec = test::instantiate(plain); }, [&] { exec.emplace(ours); }));
      later.add([&] { plain_again = test::instantiate(plain); }, [&] { again.emplace(ours); });
      test::must(exec->is_bare() && again->is_bare(), "the execs are bare");
    }
    make.settle();
  }
  first.report(state);
  later.report(state, "later_");
}

}  // namespace

void register_owners(settings const& how) {
  for (int const owners : {64, how.choose(8192, 8192, 512)}) {
    int const iterations = owners > 64 ? how.choose(3, 1, 1) : how.choose(30, 4, 2);
    std::string const suffix = "/owners:" + std::to_string(owners);
    add("capture/retire" + suffix, iterations, benchmark::kMicrosecond,
        [=](benchmark::State& state) { retire(state, owners); })
        ->Repetitions(repetitions(how));
    add("capture/instantiate" + suffix, iterations, benchmark::kMicrosecond,
        [=](benchmark::State& state) { instantiate(state, owners); })
        ->Repetitions(repetitions(how));
  }
}

}  // namespace escrow::bench
