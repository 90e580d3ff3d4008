// SPDX-License-Identifier: Apache-2.0
// What every bench program consists of: settings, arms, benchmarks whose exceptions become errors
// of the program, and times of one operation that is done in two ways in turns.
#pragma once

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "status.hpp"

namespace escrow::bench {

// What the command line and the runtime decide.
struct settings {
  bool is_simulated = true;  // numbers then say nothing about speed
  bool is_quick = true;      // simulated, or --quick: see that everything runs

  [[nodiscard]] int choose(int count, int quick) const { return is_quick ? quick : count; }
};

// One way to do what a bench measures. `setup` is a function that makes what the bench then runs
// and times; the end of what it made tears everything down. It is null if this program was built
// without a library that the arm needs.
template <class Setup>
struct arm {
  char const* name;
  Setup* setup;
  int times_max = std::numeric_limits<int>::max();  // in one timed row, where that has a limit
};

template <class Arms>
[[nodiscard]] auto arm_named(std::string_view name, Arms const& arms) {
  for (auto const& each : arms) {
    if (each.name == name) return each;
  }
  throw std::invalid_argument("no arm has this name");
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

// The iterations of a benchmark: `once()` does one and returns its microseconds.
template <class Once>
void repeat(benchmark::State& state, Once once) {
  for (auto _ : state) state.SetIterationTime(once() * 1e-6);
}

// Registers the program's benchmarks. Each bench program defines it.
void register_all(settings const& how);

using clock = std::chrono::steady_clock;

// Seconds from `begin` until now.
[[nodiscard]] inline double seconds_since(clock::time_point begin) {
  return std::chrono::duration<double>(clock::now() - begin).count();
}

// Microseconds that `operation()` takes.
template <class Operation>
[[nodiscard]] double us_of(Operation operation) {
  auto const begin = clock::now();
  operation();
  return seconds_since(begin) * 1e6;
}

// The value below which `share` of `values` lie.
template <class Value>
[[nodiscard]] Value quantile(std::vector<Value> values, double share) {
  auto const last = static_cast<double>(values.size() - 1);
  auto const at = values.begin() + static_cast<std::ptrdiff_t>(share * last + 0.5);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

// The times of one operation done with plain CUDA and in another way, which is Escrow's or that of
// an arm, in turns: what drifts meanwhile drifts for both.
class turns {
 public:
  // `plain()` and `other()` do the operation and return what it took. Which of them is first
  // alternates. Returns what the other took.
  template <class Plain, class Other>
  double add(Plain plain, Other other) {
    bool const is_plain_first = plain_.size() % 2 == 0;
    double of_plain = is_plain_first ? plain() : 0;
    double const of_other = other();
    if (!is_plain_first) of_plain = plain();
    return note(of_plain, of_other);
  }

  // The same with one of them before and after two of the other: both have the same part of any
  // drift.
  template <class Plain, class Other>
  double add_around(Plain plain, Other other) {
    bool const is_plain_first = plain_.size() % 2 == 0;
    auto const outer = [&] { return is_plain_first ? plain() : other(); };
    auto const inner = [&] { return is_plain_first ? other() : plain(); };
    double const before = outer();
    double const between = (inner() + inner()) / 2;
    double const around = (before + outer()) / 2;
    return is_plain_first ? note(around, between) : note(between, around);
  }

  // The same with operations that return nothing, in microseconds. Each takes part in the figures
  // as one of `count` operations.
  template <class Plain, class Other>
  double add_us(Plain plain, Other other, int count = 1) {
    return add([&] { return us_of(plain) / count; }, [&] { return us_of(other) / count; });
  }

  // Medians: of the times, of the differences, and of the ratios to plain CUDA.
  [[nodiscard]] double plain() const { return quantile(plain_, 0.5); }
  [[nodiscard]] double other() const { return quantile(other_, 0.5); }
  [[nodiscard]] double extra() const { return quantile(extra_, 0.5); }
  [[nodiscard]] double share() const { return quantile(share_, 0.5); }

  // As counters, if what was added is Escrow's microseconds.
  void report(benchmark::State& state) const {
    state.counters.insert({{"plain_us", plain()},
                           {"escrow_us", other()},
                           {"extra_us", extra()},
                           {"of_plain", share()}});
  }

 private:
  double note(double plain, double other) {
    plain_.push_back(plain);
    other_.push_back(other);
    extra_.push_back(other - plain);
    share_.push_back(plain > 0 ? other / plain : 0);
    return other;
  }

  std::vector<double> plain_, other_, extra_, share_;
};

}  // namespace escrow::bench
