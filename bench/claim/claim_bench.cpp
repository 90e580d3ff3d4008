// What a claim with its release costs the host, beside the least it can cost and what else there
// is.
//
// Each benchmark's time is microseconds per pair, of the slowest thread. No kernel runs in between:
// it would hide the difference. Rows of pairs are short enough for CUDA's launch queue, and streams
// are synchronised between rows, outside the time.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "captured.hpp"
#include "claim_arm.hpp"
#include "handles.hpp"
#include "registering.hpp"
#include "settings.hpp"
#include "status.hpp"
#include "thread_team.hpp"

namespace escrow::bench {
namespace {

// One thread's streams and claimer.
struct claiming_thread {
  explicit claiming_thread(claim_arm& arm, int stream_count) : claims(arm.make_claimer()) {
    for (int i = 0; i < stream_count; ++i) {
      owned.push_back(test::make_stream());
      streams.push_back(owned.back());
    }
  }

  void sync() const {
    for (cudaStream_t const stream : streams) test::must(cudaStreamSynchronize(stream));
  }

  std::vector<test::owned_stream> owned;
  std::vector<cudaStream_t> streams;
  std::unique_ptr<claimer> claims;
};

void run(benchmark::State& state, named_arm const& which, int threads, int streams, int pairs) {
  auto const arm = which.make();
  thread_team team(threads, [&]() -> thread_team::part {
    auto const mine = std::make_shared<claiming_thread>(*arm, streams);
    return {.timed = [=] { mine->claims->run(mine->streams, pairs); },
            .after = [=] { mine->sync(); }};
  });
  constexpr int warm_up_rounds = 2;
  for (int i = 0; i < warm_up_rounds; ++i) static_cast<void>(team.round());
  for (auto _ : state) state.SetIterationTime(team.round() / pairs);
}

void register_arms(settings const& how, std::string const& group, std::span<named_arm const> all,
                   int threads, int streams) {
  for (named_arm const& each : all) {
    if (how.is_simulated && !each.is_simulatable) continue;
    int const pairs = std::min(each.pairs_max, how.choose(256, 64, 4));
    add("claim/" + group + each.name + "/on_threads:" + std::to_string(threads),
        how.choose(30, 5, 1), benchmark::kMicrosecond,
        [=](benchmark::State& state) { run(state, each, threads, streams, pairs); });
  }
}

}  // namespace

void register_all(settings const& how) {
  for (int const threads : {1, 2, 4, 8, 16}) register_arms(how, "", threaded_arms(), threads, 1);
  register_arms(how, "ping_pong/", ping_pong_arms(), 1, 2);
  register_captured(how);
}

}  // namespace escrow::bench
