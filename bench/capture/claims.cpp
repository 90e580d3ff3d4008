// What a claim and its release cost in a capture: the capture with them and a kernel each, less the
// capture with the kernels alone, on one branch and on several.
#include <benchmark/benchmark.h>

#include <escrow/deleter.hpp>
#include <escrow/pool.hpp>
#include <functional>
#include <string>
#include <vector>

#include "capture_measures.hpp"
#include "differences.hpp"
#include "handles.hpp"
#include "kernels.hpp"
#include "registering.hpp"
#include "status.hpp"

namespace escrow::bench {
namespace {

using pool = resource_pool<int>;  // what is claimed does not matter: nothing is made

// Streams that a capture forks to, and joins.
class branches {
 public:
  explicit branches(int count) {
    for (int i = 0; i < count; ++i) {
      streams_.push_back(test::make_stream());
      joins_.push_back(test::make_event());
    }
  }

  // Captures `enqueue(stream)` so many times, on the branches in turn.
  [[nodiscard]] test::owned_graph captured(int times,
                                           std::function<void(cudaStream_t)> const& enqueue) {
    test::owned_graph graph;
    test::must(cudaStreamBeginCapture(streams_[0], cudaStreamCaptureModeThreadLocal));
    test::must(cudaEventRecord(joins_[0], streams_[0]));
    for (std::size_t i = 1; i < streams_.size(); ++i) {
      test::must(cudaStreamWaitEvent(streams_[i], joins_[0], 0));
    }
    for (int i = 0; i < times; ++i)
      enqueue(streams_[static_cast<std::size_t>(i) % streams_.size()]);
    for (std::size_t i = 1; i < streams_.size(); ++i) {
      test::must(cudaEventRecord(joins_[i], streams_[i]));
      test::must(cudaStreamWaitEvent(streams_[0], joins_[i], 0));
    }
    test::must(cudaStreamEndCapture(streams_[0], graph.out()));
    return graph;
  }

 private:
  std::vector<test::owned_stream> streams_;
  std::vector<test::owned_event> joins_;
};

void run(benchmark::State& state, int branch_count, int claims) {
  branches on(branch_count);
  escrow::deleter deleter;
  pool from({.slots_max = 1024, .label = "captured", .deleter = &deleter}, [] { return 0; });
  auto const plain = [](cudaStream_t stream) { test::must(test::launch_tiny(stream)); };
  auto const ours = [&](cudaStream_t stream) {
    lease<int> const claimed = from.claim(stream);
    test::must(test::launch_tiny(stream));
  };
  auto const settle = [&] {
    test::must(deleter.drain_for(settle_max), "the deleter drains");
    test::must(from.stats().in_graphs == 0, "all slots have come back");
  };
  static_cast<void>(on.captured(claims, ours));  // makes the slots
  settle();
  differences times;
  for (auto _ : state) {
    require_time();
    test::owned_graph plain_graph, our_graph;  // destroyed outside of the time
    state.SetIterationTime(times.add([&] { plain_graph = on.captured(claims, plain); },
                                     [&] { our_graph = on.captured(claims, ours); }, claims) /
                           claims);
    our_graph.reset();
    settle();
  }
  times.report(state);
  state.counters["slots_made"] = static_cast<double>(from.stats().grown);
}

}  // namespace

void register_claims(settings const& how) {
  for (int const claims : {256, how.choose(16'384, 16'384, 1024)}) {
    for (int const branch_count : {1, 16}) {
      add("capture/claim/branches:" + std::to_string(branch_count) +
              "/claims:" + std::to_string(claims),
          claims > 256 ? how.choose(3, 1, 1) : how.choose(40, 6, 2), benchmark::kMicrosecond,
          [=](benchmark::State& state) { run(state, branch_count, claims); })
          ->Repetitions(repetitions(how));
    }
  }
}

}  // namespace escrow::bench
