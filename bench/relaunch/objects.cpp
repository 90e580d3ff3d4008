// What 64 objects add to instantiating, updating and destroying an exec of 8 kernels.
//
// Each operation is timed right after, or right before, the same one on a bare graph with plain
// CUDA calls; the figures are medians of the differences, in microseconds. Threads of CUDA's and of
// the deleter are idle meanwhile: each iteration begins with everything reclaimed.
#include <benchmark/benchmark.h>

#include <array>
#include <escrow/deleter.hpp>
#include <escrow/graph.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "differences.hpp"
#include "forms.hpp"
#include "handles.hpp"
#include "measures.hpp"
#include "registering.hpp"
#include "settings.hpp"
#include "status.hpp"

namespace escrow::bench {
namespace {

constexpr int objects = 64;

// Makes graphs of both sorts.
struct graphs {
  [[nodiscard]] test::owned_graph plain() const { return captured(stream, line_of_8); }
  [[nodiscard]] graph ours() {
    work kernels(line_of_8);
    return capture(stream_ref(stream.get()), [&](stream_ref capturing) {
      for (int i = 0; i < objects; ++i) deleter.retire(capturing, std::make_unique<int>(i));
      kernels.enqueue(capturing.get());
    });
  }
  void settle() {
    test::must(cudaStreamSynchronize(stream));
    test::must(deleter.drain_for(end_wait_max), "the deleter drains");
  }

  test::owned_stream stream = test::make_stream();
  escrow::deleter deleter;
};

// The first exec of a graph is the dearest: the 64 references become one then. Later ones find it.
void instantiate(benchmark::State& state) {
  graphs make;
  differences first, later;
  for (auto _ : state) {
    require_time();
    make.settle();
    test::owned_graph const plain = make.plain();
    graph const ours = make.ours();
    test::owned_exec plain_exec, plain_again;
    std::optional<graph_exec> exec, again;
    state.SetIterationTime(
        first.add([&] { plain_exec = test::instantiate(plain); }, [&] { exec.emplace(ours); }));
    later.add([&] { plain_again = test::instantiate(plain); }, [&] { again.emplace(ours); });
    test::must(exec->is_bare() && again->is_bare(), "the execs are bare");
  }
  first.report(state, "");
  later.report(state, "later_");
}

// Between two graphs, each with 64 objects of its own, to and fro. The first update to a graph
// makes one of its 64 references, as an instantiation does.
void update(benchmark::State& state) {
  constexpr int times = 4;
  graphs make;
  differences first, later;
  for (auto _ : state) {
    require_time();
    make.settle();
    std::array<test::owned_graph, 2> const plain{make.plain(), make.plain()};
    std::array<graph, 2> const ours{make.ours(), make.ours()};
    test::owned_exec const plain_exec = test::instantiate(plain[0]);
    graph_exec exec(ours[0]);
    test::must(cudaGraphLaunch(plain_exec, make.stream));
    exec.launch(make.stream.get());
    test::must(cudaStreamSynchronize(make.stream));
    auto const add = [&](differences& to, std::size_t graph_index) {
      cudaGraphExecUpdateResultInfo result{};
      return to.add(
          [&] { test::must(cudaGraphExecUpdate(plain_exec, plain[graph_index], &result)); },
          [&] { exec.update(ours[graph_index]); });
    };
    state.SetIterationTime(add(first, 1));
    for (int i = 0; i < times; ++i) add(later, static_cast<std::size_t>(i % 2));
    test::must(exec.is_bare(), "the exec is bare");
  }
  first.report(state, "first_");
  later.report(state, "");
}

// The exec has been launched and is the last to hold the objects, so all of them are let go within
// the call. With the launch in flight, they are let go by the worker afterwards.
void destroy(benchmark::State& state) {
  graphs make;
  differences idle, in_flight;
  auto const add = [&](differences& to, bool is_idle) {
    make.settle();
    test::owned_exec plain = test::instantiate(make.plain());
    std::optional<graph_exec> ours(std::in_place, make.ours());
    auto const launched = [&](auto launch) {
      launch();
      if (is_idle) test::must(cudaStreamSynchronize(make.stream));
    };
    launched([&] { test::must(cudaGraphLaunch(plain, make.stream)); });
    launched([&] { ours->launch(make.stream.get()); });
    return to.add([&] { plain.reset(); }, [&] { ours.reset(); });
  };
  for (auto _ : state) {
    require_time();
    state.SetIterationTime(add(idle, true));
    static_cast<void>(add(in_flight, false));
  }
  idle.report(state, "");
  in_flight.report(state, "in_flight_");
}

}  // namespace

void register_objects(settings const& how) {
  struct operation {
    char const* name;
    void (*run)(benchmark::State&);
  };
  for (auto const& each : {operation{"instantiate", &instantiate}, operation{"update", &update},
                           operation{"destroy", &destroy}}) {
    add("objects64/" + std::string(each.name), how.choose(60, 4, 2), benchmark::kMicrosecond,
        each.run)
        ->Repetitions(repetitions(how));
  }
}

}  // namespace escrow::bench
