// What every bench program consists of: settings, arms, and benchmarks whose exceptions become
// errors of the program.
#pragma once

#include <benchmark/benchmark.h>

#include <functional>
#include <limits>
#include <string>

namespace escrow::bench {

// What the command line and the runtime decide.
struct settings {
  bool is_simulated = true;  // numbers then say nothing about speed
  bool is_quick = false;     // --quick: see that everything runs; the numbers are of no use
  std::string stacks{};      // --stacks=FOLDER: samples stacks into it and does nothing else

  // The count for the runtime at hand: full on a GPU, less on the simulated runtime, least if
  // quick.
  [[nodiscard]] int choose(int gpu, int simulated, int quick) const {
    if (is_quick) return quick;
    return is_simulated ? simulated : gpu;
  }
};

// One way to do what a bench measures. `setup` is a function that makes what the bench then runs
// and times; the end of what it made tears everything down.
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

// How often something is done: `iterations` in each of `repetitions`; 0 repetitions: the default.
struct times {
  int iterations;
  int repetitions = 0;
};

// Registers `run` under `name` with manual timing: `run` tells each iteration's time itself. What
// it throws fails this one repetition, and the rest goes on.
void add(std::string const& name, times const& how_often, benchmark::TimeUnit unit,
         std::function<void(benchmark::State&)> run);

// Throws std::runtime_error once the program's time is over. Benchmarks ask in their loops: what
// was measured until then can still be written.
void require_time();

// Registers the program's benchmarks. Each bench program defines it.
void register_all(settings const& how);

}  // namespace escrow::bench
