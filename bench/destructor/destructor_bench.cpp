// Nanoseconds inside a destroy callback, sample by sample; how long an owner lives on after
// cudaGraphExecDestroy; and heap allocations in steady state.
//
// destructor/...: each benchmark's time is the mean; the counters have the quantiles. Two readings
// of the clock are in each sample: subtract destructor/empty to be without.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>
#if defined(__x86_64__)
#include <x86intrin.h>
#endif

#include "allocation_watch.hpp"
#include "callback_arms.hpp"
#include "graphs.hpp"
#include "wait_until.hpp"

namespace escrow::bench {
namespace {

// A clock for the shortest times: the processor's own counter where it has one. Nothing before it
// in the program is done later, and nothing behind it earlier.
std::uint64_t ticks() {
#if defined(__x86_64__)
  _mm_lfence();
  std::uint64_t const now = __rdtsc();
  _mm_lfence();
  return now;
#else
  return static_cast<std::uint64_t>(clock::now().time_since_epoch().count());
#endif
}

double ns_per_tick() {
  static double const measured = [] {
    constexpr double long_enough = 0.02;
    auto const begin = clock::now();
    std::uint64_t const first = ticks();
    while (seconds_since(begin) < long_enough) {
    }
    std::uint64_t const last = ticks();
    return seconds_since(begin) * 1e9 / static_cast<double>(last - first);
  }();
  return measured;
}

struct samples {
  std::vector<std::uint32_t> times;  // ticks
  std::size_t unconfirmed = 0;       // rounds that began without a sleeper being seen
};

void take_round(callback_arm& arm, samples& taken) {
  // Volatile: CUDA's calls are not inlined either.
  callback_arm::callback_function const volatile callback = arm.callback;
  if (!arm.begin_round()) ++taken.unconfirmed;
  for (std::size_t i = 0; i < arm.round_size; ++i) {
    void* const object = arm.object(i);
    std::uint64_t const begin = ticks();
    callback(object);
    std::uint64_t const end = ticks();
    taken.times.push_back(
        static_cast<std::uint32_t>(std::min<std::uint64_t>(end - begin, UINT32_MAX)));
  }
  arm.end_round();
}

samples take(callback_arm& arm, std::size_t rounds) {
  samples taken;
  taken.times.resize(rounds * arm.round_size);  // touches the memory, so that no sample pays for it
  taken.times.clear();
  for (std::size_t left = rounds; left > 0; --left) take_round(arm, taken);
  return taken;
}

void run(benchmark::State& state, named_callback_arm const& which, std::size_t count) {
  auto const arm = which.setup();
  constexpr std::size_t warm_up_rounds = 4;
  static_cast<void>(take(*arm, warm_up_rounds));
  samples taken;
  for (auto _ : state) {
    taken = take(*arm, count / arm->round_size);
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

using end_time = std::atomic<std::int64_t>;  // in ticks of `clock`; 0: not yet

// Release: pairs with the acquire in reclaim_us().
void note_end(end_time& ended_at) noexcept {
  ended_at.store(clock::now().time_since_epoch().count(), std::memory_order_release);
}

// From the call of cudaGraphExecDestroy to the end of an owner that the exec held.
double reclaim_us(escrow::deleter& deleter, cudaStream_t stream, bool is_launched) {
  static end_time ended_at{0};  // there, however late an owner ends
  ended_at.store(0, std::memory_order_relaxed);
  test::owned_exec exec = [&] {
    graph const captured = capture(stream_ref(stream), [&](stream_ref capturing) {
      test::must(test::launch_tiny(stream));
      deleter.retire(capturing, telling_owner<end_time, &note_end>(ended_at));
    });
    return test::instantiate(captured.get());
  }();
  if (is_launched) test::must(cudaGraphLaunch(exec, stream));
  test::must(cudaStreamSynchronize(stream));
  auto const begin = clock::now();
  exec.reset();
  // Acquire: pairs with the release in note_end().
  test::must(test::wait_until([&] { return ended_at.load(std::memory_order_acquire) != 0; }),
             "the owner is destroyed");
  clock::time_point const end{clock::duration(ended_at.load(std::memory_order_relaxed))};
  return std::chrono::duration<double, std::micro>(end - begin).count();
}

void run_reclaim(benchmark::State& state, bool is_launched) {
  test::owned_stream const stream = test::make_stream();
  escrow::deleter deleter;
  static_cast<void>(reclaim_us(deleter, stream, is_launched));
  std::vector<double> all;
  for (auto _ : state) {
    all.push_back(reclaim_us(deleter, stream, is_launched));
    state.SetIterationTime(all.back() * 1e-6);
  }
  state.counters["p50_us"] = quantile(all, 0.5);
  state.counters["p99_us"] = quantile(all, 0.99);
}

// What the owners of the steady state tell when the worker destroys them.
struct tally {
  std::atomic<std::uint64_t> ended{0};
  std::atomic<std::uint64_t> allocations{0};  // of the worker, since it destroyed the first
};

// Relaxed: the release behind it publishes it. Release: pairs with the acquire in have_all_ended().
void note_end_and_allocations(tally& of) noexcept {
  thread_local test::allocation_watch const workers;
  of.allocations.store(workers.count(), std::memory_order_relaxed);
  of.ended.fetch_add(1, std::memory_order_release);
}

void allocate_and_note(tally& of) noexcept {
  auto allocated = std::make_unique<std::uint64_t>(0);
  benchmark::DoNotOptimize(allocated.get());
  note_end_and_allocations(of);
}

// Two streams, a pool and a deleter that are used over and over.
class steady_state {
 public:
  steady_state() = default;
  steady_state(steady_state&&) = delete;
  // Owners count in here until their end, which comes by itself.
  ~steady_state() { static_cast<void>(have_all_ended()); }

  // `turns` claims, releases, retirements and reclaims.
  void run(std::uint64_t turns) {
    for (std::uint64_t done = 0; done < turns; done += row) {
      for (std::uint64_t i = 0; i < row; ++i) {
        cudaStream_t const stream = streams_[i % 2];
        auto leased = pool_.claim(stream);
        deleter_.retire(stream, telling_owner<tally, &note_end_and_allocations>(told_));
        leased.release();
      }
      retired_ += row;
      for (auto const& stream : streams_) test::must(cudaStreamSynchronize(stream));
      await();
    }
  }

  // A row whose owners are all pending at once, which is as many as there will ever be.
  void fill() {
    constexpr std::uint64_t enqueue_us = 20'000;  // far more than a row takes
    for (auto const& stream : streams_) test::must(test::launch_sleep(stream, enqueue_us));
    run(row);
  }

  // Makes the worker allocate once.
  void allocate_on_worker() {
    deleter_.retire(telling_owner<tally, &allocate_and_note>(told_));
    ++retired_;
    await();
  }

  // Of Escrow's worker, until its last reclaim. Relaxed: read after await().
  [[nodiscard]] std::uint64_t workers_allocations() const {
    return told_.allocations.load(std::memory_order_relaxed);
  }

 private:
  static constexpr std::uint64_t row = 256;  // fits in CUDA's launch queue

  void await() const { test::must(have_all_ended(), "all owners have been destroyed"); }
  [[nodiscard]] bool have_all_ended() const {
    // Acquire: pairs with the release in note_end_and_allocations().
    return test::wait_until(
        [this] { return told_.ended.load(std::memory_order_acquire) == retired_; });
  }

  test::owned_stream const streams_[2] = {test::make_stream(), test::make_stream()};
  tally told_;
  std::uint64_t retired_ = 0;
  escrow::deleter deleter_;
  resource_pool<int> pool_{{.label = "steady", .deleter = &deleter_}, [] { return 0; }};
};

// Heap allocations of Escrow, on the calling thread and on its worker, once everything is warm.
void run_steady(benchmark::State& state, std::uint64_t turns) {
  steady_state steady;
  constexpr std::uint64_t warm_up_turns = 4096;
  steady.run(warm_up_turns);
  steady.fill();
  std::uint64_t const before = steady.workers_allocations();
  auto const all = static_cast<double>(turns);
  std::uint64_t counted = 0;
  for (auto _ : state) {
    test::allocation_watch const mine;
    state.SetIterationTime(us_of([&] { steady.run(turns); }) * 1e-6 / all);
    counted = mine.count() + steady.workers_allocations() - before;
  }
  steady.allocate_on_worker();
  test::must(steady.workers_allocations() > before, "an allocation of the worker is counted");
  state.counters["turns"] = all;
  state.counters["allocations"] = static_cast<double>(counted);
  state.counters["allocations_per_million"] = static_cast<double>(counted) * 1e6 / all;
}

}  // namespace

void register_all(settings const& how) {
  for (named_callback_arm const& each : callback_arms()) {
    int const count = std::min(each.times_max, how.choose(1 << 20, 1 << 17, 1 << 11));
    add("destructor/" + std::string(each.name), {1}, benchmark::kNanosecond,
        [=](benchmark::State& state) { run(state, each, static_cast<std::size_t>(count)); });
  }
  for (bool const is_launched : {false, true}) {
    add("reclaim/exec_" + std::string(is_launched ? "launched" : "never_launched"),
        {how.choose(200, 50, 2)}, benchmark::kMicrosecond,
        [=](benchmark::State& state) { run_reclaim(state, is_launched); });
  }
  auto const turns = static_cast<std::uint64_t>(how.choose(1'000'192, 20'224, 1024));
  add("steady/allocations", {1, how.choose(3, 3, 2)}, benchmark::kMicrosecond,
      [=](benchmark::State& state) { run_steady(state, turns); });  // a count needs no more
}

}  // namespace escrow::bench
