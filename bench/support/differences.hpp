// One operation done in two ways, right after each other.
#pragma once

#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "times.hpp"

namespace escrow::bench {

// Microseconds that `operation()` takes.
template <class Operation>
double us_of(Operation operation) {
  auto const begin = clock::now();
  operation();
  return seconds_since(begin) * 1e6;
}

// The times of one operation done with plain CUDA and with Escrow, in turns, and their difference:
// what drifts meanwhile drifts for both.
class differences {
 public:
  // Times both, in an order that alternates. Each takes part in the figures as one of `count`
  // operations. Returns the seconds of `ours`.
  template <class Plain, class Ours>
  double add(Plain plain, Ours ours, int count = 1) {
    bool const is_plain_first = plain_.size() % 2 == 0;
    double plain_us = is_plain_first ? us_of(plain) : 0;
    double const ours_us = us_of(ours);
    if (!is_plain_first) plain_us = us_of(plain);
    note(plain_us / count, ours_us / count);
    return ours_us * 1e-6;
  }
  // Takes times that were measured elsewhere, in microseconds.
  void note(double plain_us, double ours_us) {
    plain_.push_back(plain_us);
    ours_.push_back(ours_us);
    extra_.push_back(ours_us - plain_us);
    share_.push_back(plain_us > 0 ? ours_us / plain_us : 0);
  }

  // Medians, as counters.
  void report(benchmark::State& state, std::string const& prefix = "") {
    state.counters[prefix + "plain_us"] = quantile(plain_, 0.5);
    state.counters[prefix + "escrow_us"] = quantile(ours_, 0.5);
    state.counters[prefix + "extra_us"] = quantile(extra_, 0.5);
    state.counters[prefix + "of_plain"] = quantile(share_, 0.5);
  }

 private:
  std::vector<double> plain_, ours_, extra_, share_;
};

}  // namespace escrow::bench
