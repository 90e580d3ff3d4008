// What every bench program consists of: settings, arms, and benchmarks whose exceptions become
// errors of the program.
#pragma once

#include <benchmark/benchmark.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <string_view>

#include "status.hpp"

namespace escrow::bench {

// What the command line and the runtime decide.
struct settings {
  bool is_simulated = true;  // numbers then say nothing about speed
  bool is_quick = true;      // simulated, or --quick: see that everything runs
  std::string stacks{};      // --stacks=FOLDER: samples stacks into it and does nothing else

  [[nodiscard]] int choose(int count, int quick) const { return is_quick ? quick : count; }
};

// One way to do what a bench measures. `setup` is a function that makes what the bench then runs
// and times; the end of what it made tears everything down. It is null if this program was built
// without a library that the arm needs.
template <class Setup>
struct arm {
  char const* name;
  Setup* setup;
  bool is_simulatable = true;                       // exists on the simulated runtime too
  int times_max = std::numeric_limits<int>::max();  // in one timed row, where that has a limit

  [[nodiscard]] bool is_for(settings const& how) const {
    return is_simulatable || !how.is_simulated;
  }
};

template <class Arms>
[[nodiscard]] auto arm_named(std::string_view name, Arms const& arms) {
  auto const found =
      std::ranges::find_if(arms, [=](auto const& each) { return each.name == name; });
  test::must(found != std::end(arms), "there is an arm of this name");
  return *found;
}

// How often something is done: `iterations` in each of `repetitions`; 0 repetitions: the default.
struct times {
  int iterations;
  int repetitions = 0;
  benchmark::TimeUnit unit = benchmark::kMicrosecond;
};

// Registers `run` under `name` with manual timing: `run` tells each iteration's time itself. What
// it throws fails this one repetition, and the rest goes on.
void add_benchmark(std::string const& name, times const& how_often,
                   std::function<void(benchmark::State&)> run);
// The same of `run(state, arguments...)`.
template <class Run, class... Arguments>
void add(std::string const& name, times const& how_often, Run run, Arguments... arguments) {
  add_benchmark(name, how_often, [=](benchmark::State& state) { run(state, arguments...); });
}

// Throws std::runtime_error once the program's time is over: what was measured until then can still
// be written.
void require_time();

// The iterations of a benchmark: `once()` does one and returns its microseconds.
template <class Once>
void repeat(benchmark::State& state, Once once) {
  for (auto _ : state) {
    require_time();
    state.SetIterationTime(once() * 1e-6);
  }
}

// Registers the program's benchmarks. Each bench program defines it.
void register_all(settings const& how);
// Parts of some programs, in files of their own.
void register_callbacks(settings const& how);
void register_exec_sets(settings const& how);
void register_interference(settings const& how);
void register_mixed(settings const& how);
void register_races(settings const& how);

}  // namespace escrow::bench
