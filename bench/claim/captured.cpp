// Claims in a stream capture: microseconds per claim, or per claim and release.
#include "captured.hpp"

#include <escrow/graph.hpp>
#include <escrow/pool.hpp>
#include <vector>

#include "handles.hpp"
#include "kernels.hpp"
#include "registering.hpp"
#include "status.hpp"
#include "times.hpp"

namespace escrow::bench {
namespace {

constexpr int claims = 64;  // in one capture

using pool = resource_pool<int>;  // what is claimed does not matter: nothing is made

// Seconds that `claims` claims take, each followed by a kernel, in the capture of `stream`.
double kept_claims(pool& from, cudaStream_t stream) {
  std::vector<lease<int>> kept;
  kept.reserve(claims);
  double seconds = 0;
  for (int i = 0; i < claims; ++i) {
    auto const begin = clock::now();
    kept.push_back(from.claim(stream));
    seconds += seconds_since(begin);
    test::must(test::launch_tiny(stream));
  }
  return seconds;
}

// The same with a release after each kernel, which is timed too.
double reused_claims(pool& from, cudaStream_t stream) {
  double seconds = 0;
  for (int i = 0; i < claims; ++i) {
    auto const begin = clock::now();
    auto leased = from.claim(stream);
    seconds += seconds_since(begin);
    test::must(test::launch_tiny(stream));
    auto const end = clock::now();
    leased.release();
    seconds += seconds_since(end);
  }
  return seconds;
}

using claim_function = double (*)(pool& from, cudaStream_t stream);

// Captures once, and has all slots back when it returns.
double captured_once(escrow::deleter& deleter, pool& from, cudaStream_t stream,
                     claim_function claim) {
  double seconds = 0;
  {
    graph const captured = capture(stream, [&](stream_ref) { seconds = claim(from, stream); });
  }
  test::must(deleter.drain_for(std::chrono::seconds(5)), "the deleter drains");
  test::must(from.stats().in_graphs == 0, "all slots have come back");
  return seconds;
}

void run(benchmark::State& state, claim_function claim) {
  test::owned_stream const stream = test::make_stream();
  escrow::deleter deleter;
  pool from({.slots_max = claims, .label = "captured", .deleter = &deleter}, [] { return 0; });
  // The first capture makes the slots.
  static_cast<void>(captured_once(deleter, from, stream, claim));
  for (auto _ : state) {
    state.SetIterationTime(captured_once(deleter, from, stream, claim) / claims);
  }
  state.counters["slots_made"] = static_cast<double>(from.stats().grown);
}

}  // namespace

void register_captured(settings const& how) {
  int const captures = how.choose(100, 10, 2);
  add("claim/captured", captures, benchmark::kMicrosecond,
      [](benchmark::State& state) { run(state, &kept_claims); });
  add("claim/captured_reuse", captures, benchmark::kMicrosecond,
      [](benchmark::State& state) { run(state, &reused_claims); });
}

}  // namespace escrow::bench
