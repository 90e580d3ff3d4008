// SPDX-License-Identifier: Apache-2.0
// What a scratch_pool keeps of the device's memory, and whom it disturbs when it gives it back.
//
// kept/PATTERN/POOL: the device's memory that is missing after the pattern, over the most bytes
// that were in use at once. The patterns: one buffer at a time of 1 to 128 MiB; five buffers of an
// attention whose context grows, as llama.cpp claims them. The host waits for each step, or, in
// ..._ahead, for none. The pools: as it is by default, and one that keeps all.
// kept_again/SIZES/POOL: microseconds for each claim of sizes that alternate.
// kept_random: the same of random sizes while 64 blocks are out, by default, in turns with a pool
// that keeps all (plain_us, of_plain); made: blocks for each claim.
// freeing: the slowest launch of a tiny kernel while 16 GiB are trimmed, 1,000 owners of device
// memory are destroyed, and a kernel of a second runs; and without all that.
#include <atomic>
#include <escrow/deleter.hpp>
#include <escrow/pool.hpp>
#include <random>
#include <thread>

#include "bench.hpp"
#include "graphs.hpp"
#include "memory.hpp"

namespace escrow::bench {
namespace {

constexpr std::size_t mebibyte = std::size_t{1} << 20U;

struct pattern {
  std::string name;
  std::vector<std::vector<std::size_t>> steps;  // bytes that are in use at once
  bool is_ahead = false;
};

std::size_t peak_of(pattern const& which) {
  std::size_t peak = 0;
  for (auto const& step : which.steps) {
    std::size_t sum = 0;
    for (std::size_t const bytes : step) sum += bytes;
    peak = std::max(peak, sum);
  }
  return peak;
}

void run_step(scratch_pool& pool, cudaStream_t stream, std::vector<std::size_t> const& sizes) {
  std::vector<lease<device_block>> claimed;
  for (std::size_t const bytes : sizes) {
    claimed.push_back(pool.claim(stream, bytes));
    test::must(cudaMemsetAsync(claimed.back()->data(), 1, bytes, stream));
  }
}

void run_kept(benchmark::State& state, pattern const& which, double factor) {
  repeat(state, [&] {
    test::owned_stream const stream = test::make_stream();
    double const before = settled_free_bytes();
    scratch_pool pool({.slots_max = 64}, {.keep_factor = factor});
    double const us = us_of([&] {
      for (auto const& step : which.steps) {
        run_step(pool, stream, step);
        if (!which.is_ahead) test::must(cudaStreamSynchronize(stream));
      }
      test::must(cudaStreamSynchronize(stream));
    });
    run_step(pool, stream, which.steps.back());  // what was to go after its work does so
    escrow::deleter::global().drain();
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    state.counters["over_peak"] =
        (before - free_device_bytes()) / static_cast<double>(peak_of(which));
    return us / static_cast<double>(which.steps.size());
  });
}

void run_again(benchmark::State& state, std::vector<std::size_t> const& sizes, double factor,
               int rounds) {
  test::owned_stream const stream = test::make_stream();
  scratch_pool pool({.slots_max = 64}, {.keep_factor = factor});
  auto const run = [&] {
    for (std::size_t const bytes : sizes) pool.claim(stream, bytes).release();
  };
  run();
  repeat(state, [&] {
    return us_of([&] {
             for (int i = 0; i < rounds; ++i) run();
           }) /
           (static_cast<double>(sizes.size()) * rounds);
  });
  test::must(cudaStreamSynchronize(stream));
}

/// Claims of random sizes while so many blocks are out.
class random_claims {
 public:
  random_claims(cudaStream_t stream, double factor)
      : stream_(stream), pool_({.slots_max = out}, {.keep_factor = factor}) {
    while (all_.size() < out) all_.push_back(pool_.claim(stream_, 1));
  }

  /// Microseconds for each.
  double us_of_some(int claims) {
    return us_of([&] {
             for (int i = 0; i < claims; ++i) claim();
           }) /
           claims;
  }
  [[nodiscard]] double made() const { return static_cast<double>(pool_.stats().grown); }

 private:
  static constexpr std::size_t out = 64;

  void claim() {
    constexpr std::size_t powers = 14, least = 256;
    auto& each = all_[next_() % out];
    each.release();
    std::size_t const bytes = least << next_() % powers;
    each = pool_.claim(stream_, bytes + next_() % bytes);
  }

  cudaStream_t stream_;
  scratch_pool pool_;
  std::minstd_rand next_{1};
  std::vector<lease<device_block>> all_;
};

void run_random(benchmark::State& state, double factor, int claims) {
  test::owned_stream const stream = test::make_stream();
  random_claims all(stream, 0);
  random_claims bounded(stream, factor);
  all.us_of_some(claims);
  bounded.us_of_some(claims);
  double const made_before = bounded.made();
  double runs = 0;
  turns taken;
  repeat(state, [&] {
    ++runs;
    return taken.add([&] { return all.us_of_some(claims); },
                     [&] { return bounded.us_of_some(claims); });
  });
  taken.report(state);
  state.counters["made"] = (bounded.made() - made_before) / (runs * claims);
  test::must(cudaStreamSynchronize(stream));
}

// The slowest launch on another thread while `disturb` runs, beside a kernel until the end.
template <class Disturb>
double slowest_launch_us(test::pinned_flag& flag, cudaStream_t busy, Disturb disturb) {
  std::atomic<bool> is_over{false};
  std::atomic<int> launches{0};
  double slowest = 0;
  test::must(test::launch_wait_flag(busy, flag.get()));
  std::thread launcher([&] {
    test::owned_stream const stream = test::make_stream();
    while (!is_over.load()) {
      slowest = std::max(slowest, us_of([&] { test::must(test::launch_tiny(stream)); }));
      if (++launches % 64 == 0) test::must(cudaStreamSynchronize(stream));
    }
    test::must(cudaStreamSynchronize(stream));
  });
  while (launches.load() < 1000) std::this_thread::yield();
  disturb();
  is_over.store(true);
  launcher.join();
  flag.raise();
  test::must(cudaStreamSynchronize(busy));
  return slowest;
}

void run_freeing(benchmark::State& state, std::size_t trimmed, int owners, bool is_disturbed) {
  repeat(state, [&] {
    test::pinned_flag flag;
    test::owned_stream const busy = test::make_stream();
    test::owned_stream const stream = test::make_stream();
    scratch_pool pool({.slots_max = 64});
    constexpr std::size_t blocks = 16;
    {
      std::vector<lease<device_block>> all;
      for (std::size_t i = 0; i < blocks; ++i) all.push_back(pool.claim(stream, trimmed / blocks));
    }
    std::vector<device_buffer<char>> owned;
    for (int i = 0; i < owners; ++i) owned.emplace_back(65536);
    test::must(cudaStreamSynchronize(stream));
    return slowest_launch_us(flag, busy, [&] {
      if (!is_disturbed) return std::this_thread::sleep_for(std::chrono::milliseconds(100));
      for (auto& each : owned) escrow::deleter::global().retire(stream.get(), std::move(each));
      static_cast<void>(pool.trim());
      escrow::deleter::global().drain();
    });
  });
}

std::vector<std::vector<std::size_t>> growing(std::size_t unit) {
  std::vector<std::vector<std::size_t>> steps;
  for (std::size_t context = 1; context <= 64; ++context) {
    steps.push_back({context * unit, context * unit, context * unit / 2, context * unit / 4, unit});
  }
  return steps;
}

}  // namespace

void register_kept(settings const& how) {
  // What is simulated is written by the processor.
  std::size_t const unit = how.is_simulated ? mebibyte / 16 : mebibyte;
  int const repetitions = how.choose(3, 1);
  pattern one_at_a_time{.name = "one_at_a_time", .steps = {}};
  for (std::size_t size = 1; size <= 128; ++size) one_at_a_time.steps.push_back({size * unit});
  for (pattern each : {one_at_a_time, pattern{.name = "growing", .steps = growing(unit)}}) {
    for (bool const is_ahead : {false, true}) {
      each.is_ahead = is_ahead;
      std::string const name = "kept/" + each.name + (is_ahead ? "_ahead" : "");
      add(name + "/bounded", {1, repetitions}, &run_kept, each, scratch_policy{}.keep_factor);
      add(name + "/all", {1, repetitions}, &run_kept, each, 0.0);
    }
  }
  std::vector<std::size_t> many;
  for (std::size_t size = 10; size <= 100; size += 10) many.push_back(size * unit);
  for (auto const& [name, sizes] :
       {std::pair<std::string, std::vector<std::size_t>>{"two_alike", {100 * unit, 90 * unit}},
        {"two_apart", {100 * unit, 20 * unit}},
        {"ten", many}}) {
    add("kept_again/" + name + "/bounded", {1, repetitions}, &run_again, sizes,
        scratch_policy{}.keep_factor, how.choose(1000, 10));
    add("kept_again/" + name + "/all", {1, repetitions}, &run_again, sizes, 0.0,
        how.choose(1000, 10));
  }
  add("kept_random", {how.choose(9, 3), repetitions}, &run_random, scratch_policy{}.keep_factor,
      how.choose(20000, 200));
  std::size_t const trimmed = (how.is_simulated ? 64 : 16384) * mebibyte;
  add("freeing/none", {1, repetitions}, &run_freeing, trimmed, 1000, false);
  add("freeing/all", {1, repetitions}, &run_freeing, trimmed, 1000, true);
}

}  // namespace escrow::bench
