// Nanoseconds inside a destroy callback, sample by sample.
//
// Each benchmark's time is the mean; the counters have the quantiles. Two readings of the clock are
// in each sample: subtract destructor/empty to be without.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "measures.hpp"
#include "push_arm.hpp"
#include "registering.hpp"
#include "settings.hpp"
#include "ticks.hpp"
#include "times.hpp"

namespace escrow::bench {
namespace {

struct samples {
  std::vector<std::uint32_t> times;  // ticks
  std::size_t unconfirmed = 0;       // rounds that began without a sleeper being seen
};

void take_round(push_arm& arm, std::size_t count, samples& taken) {
  // Volatile: CUDA's calls are not inlined either.
  destroy_callback const volatile callback = arm.callback();
  if (!arm.begin_round()) ++taken.unconfirmed;
  for (std::size_t i = 0; i < count; ++i) {
    void* const object = arm.object(i);
    std::uint64_t const begin = ticks();
    callback(object);
    std::uint64_t const end = ticks();
    taken.times.push_back(
        static_cast<std::uint32_t>(std::min<std::uint64_t>(end - begin, UINT32_MAX)));
  }
  arm.end_round();
}

samples take(push_arm& arm, std::size_t count) {
  samples taken;
  taken.times.resize(count);  // touches the memory, so that no sample pays for it
  taken.times.clear();
  std::size_t const round = arm.round_size();
  for (std::size_t left = count / round; left > 0; --left) take_round(arm, round, taken);
  return taken;
}

void run(benchmark::State& state, named_push_arm const& which, std::size_t count) {
  auto const arm = which.make();
  constexpr std::size_t warm_up_rounds = 4;
  static_cast<void>(take(*arm, warm_up_rounds * arm->round_size()));
  samples taken;
  for (auto _ : state) {
    taken = take(*arm, count);
    double sum = 0;
    for (std::uint32_t const time : taken.times) sum += time;
    state.SetIterationTime(sum * ns_per_tick() * 1e-9 / static_cast<double>(taken.times.size()));
  }
  auto const at = [&](double share) { return quantile(taken.times, share) * ns_per_tick(); };
  state.counters["p50_ns"] = at(0.5);
  state.counters["p99_ns"] = at(0.99);
  state.counters["p999_ns"] = at(0.999);
  state.counters["max_ns"] = at(1.0);
  state.counters["samples"] = static_cast<double>(taken.times.size());
  state.counters["sleeps"] = static_cast<double>(arm->sleeps());
  state.counters["unconfirmed"] = static_cast<double>(taken.unconfirmed);
}

}  // namespace

void register_all(settings const& how) {
  auto const awake = static_cast<std::size_t>(how.choose(1 << 20, 1 << 17, 1 << 11));
  auto const asleep = static_cast<std::size_t>(how.choose(10'000, 1'000, 20));
  for (auto const arms : {escrow_arms(), other_arms()}) {
    for (named_push_arm const& each : arms) {
      add("destructor/" + std::string(each.name), 1, benchmark::kNanosecond,
          [=](benchmark::State& state) { run(state, each, each.is_asleep ? asleep : awake); });
    }
  }
  register_reclaim_latency(how);
  register_steady_allocations(how);
}

}  // namespace escrow::bench
