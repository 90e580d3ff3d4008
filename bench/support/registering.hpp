// Registering a benchmark whose exceptions become errors of the program.
#pragma once

#include <benchmark/benchmark.h>

#include <exception>
#include <functional>
#include <string>

#include "time_limit.hpp"

namespace escrow::bench {

// Labels this repetition as failed, with the reason, and makes the program exit with an error.
void report_failure(benchmark::State& state, std::exception const& error);

// Registers `run` under `name` with manual timing: `run` tells each iteration's time itself. What
// it throws fails this one repetition, and the rest goes on. `iterations` is fixed, so that every
// repetition does the same work.
inline auto* add(std::string const& name, int iterations, benchmark::TimeUnit unit,
                 std::function<void(benchmark::State&)> run) {
  auto guarded = [run = std::move(run)](benchmark::State& state) {
    try {
      require_time();
      run(state);
    } catch (std::exception const& error) {
      report_failure(state, error);
    }
  };
  return benchmark::RegisterBenchmark(name.c_str(), std::move(guarded))
      ->Iterations(iterations)
      ->UseManualTime()
      ->Unit(unit);
}

}  // namespace escrow::bench
