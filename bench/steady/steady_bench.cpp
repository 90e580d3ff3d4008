// SPDX-License-Identifier: Apache-2.0
// Heap allocations in steady state: of claims, releases, retirements and reclaims.
#include <atomic>
#include <cstdint>

#include "allocation_watch.hpp"
#include "graphs.hpp"

namespace escrow::bench {
namespace {

// What the owners of the steady state tell when the worker destroys them.
struct tally {
  std::atomic<std::uint64_t> ended{0};
  std::atomic<std::uint64_t> allocations{0};  // of the worker, since it destroyed the first
  std::atomic<bool> must_allocate{false};     // at the next end
};

// Of an owner, when it ends.
struct note_allocations {
  void operator()(tally* of) const noexcept {
    thread_local test::allocation_watch const workers;
    // Relaxed, both: the retirement publishes the order, and the release behind it the count.
    if (of->must_allocate.load(std::memory_order_relaxed)) {
      benchmark::DoNotOptimize(std::make_unique<std::uint64_t>(0).get());
    }
    of->allocations.store(workers.count(), std::memory_order_relaxed);
    // Release: pairs with the acquire in have_all_ended().
    of->ended.fetch_add(1, std::memory_order_release);
  }
};

// Two streams, a pool and a deleter that are used over and over.
class steady_state {
 public:
  steady_state() = default;
  steady_state(steady_state&&) = delete;
  // Owners count in here until their end, which comes by itself.
  ~steady_state() { static_cast<void>(have_all_ended()); }

  // `turns` claims, releases, retirements and reclaims.
  void run(std::uint64_t turns = row) {
    for (std::uint64_t done = 0; done < turns; done += row) {
      for (std::uint64_t i = 0; i < row; ++i) {
        cudaStream_t const stream = streams[i % 2];
        auto leased = kept_.pool.claim(stream);
        kept_.deleter.retire(stream, std::unique_ptr<tally, note_allocations>(&told));
        leased.release();
      }
      retired_ += row;
      test::must(cudaDeviceSynchronize());
      test::must(have_all_ended(), "all owners have been destroyed");
    }
  }

  // Of Escrow's worker, until its last reclaim. Relaxed: read when all owners have ended.
  [[nodiscard]] std::uint64_t workers_allocations() const {
    return told.allocations.load(std::memory_order_relaxed);
  }

  std::vector<test::owned_stream> const streams = make_streams(2);
  tally told;

 private:
  static constexpr std::uint64_t row = 256;  // fits in CUDA's launch queue

  [[nodiscard]] bool have_all_ended() const {
    // Acquire: pairs with the release in note_allocations.
    return test::wait_until(
        [this] { return told.ended.load(std::memory_order_acquire) == retired_; });
  }

  std::uint64_t retired_ = 0;
  pooled_ints kept_;
};

// Heap allocations of Escrow, on the calling thread and on its worker, once everything is warm.
void run_steady(benchmark::State& state, std::uint64_t turns) {
  steady_state steady;
  constexpr std::uint64_t warm_up_turns = 4096;
  steady.run(warm_up_turns);
  // A row whose owners are all pending at once, which is as many as there will ever be.
  constexpr std::uint64_t enqueue_us = 20'000;  // far more than a row takes
  for (auto const& each : steady.streams) test::must(test::launch_sleep(each, enqueue_us));
  steady.run();
  std::uint64_t const before = steady.workers_allocations();
  std::uint64_t counted = 0;
  repeat(state, [&] {
    test::allocation_watch const mine;
    double const us = us_of([&] { steady.run(turns); });
    counted = mine.count() + steady.workers_allocations() - before;
    return us / static_cast<double>(turns);
  });
  steady.told.must_allocate.store(true, std::memory_order_relaxed);  // retirements publish it
  steady.run();
  test::must(steady.workers_allocations() > before, "an allocation of the worker is counted");
  state.counters["allocations_per_million"] =
      static_cast<double>(counted * 1'000'000) / static_cast<double>(turns);
}

}  // namespace

void register_all(settings const& how) {
  auto const turns = static_cast<std::uint64_t>(how.choose(1'000'192, 1024));
  add("steady/allocations", {1, how.choose(3, 2)}, &run_steady, turns);  // a count needs no more
}

}  // namespace escrow::bench
