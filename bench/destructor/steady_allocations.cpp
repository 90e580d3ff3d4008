// Heap allocations of Escrow, on the calling thread and on its worker, once everything is warm.
#include <atomic>
#include <cstdint>
#include <escrow/deleter.hpp>
#include <escrow/pool.hpp>
#include <memory>
#include <utility>

#include "handles.hpp"
#include "heap_count.hpp"
#include "kernels.hpp"
#include "measures.hpp"
#include "registering.hpp"
#include "status.hpp"
#include "times.hpp"
#include "wait_until.hpp"

namespace escrow::bench {
namespace {

// Counts its end, and makes the thread on which it ends, the worker, count allocations or not.
class thread_switch {
 public:
  thread_switch(std::atomic<std::uint64_t>& ended, bool counts) : ended_(&ended), counts_(counts) {}
  thread_switch(thread_switch&& other) noexcept
      : ended_(std::exchange(other.ended_, nullptr)), counts_(other.counts_) {}
  thread_switch& operator=(thread_switch&&) = delete;
  ~thread_switch() {
    if (ended_ == nullptr) return;
    count_on_this_thread(counts_);
    // Release: pairs with the acquire in steady_state::have_all_ended().
    ended_->fetch_add(1, std::memory_order_release);
  }

 private:
  std::atomic<std::uint64_t>* ended_;
  bool counts_;
};

// Allocates at its end.
struct allocating_owner {
  explicit allocating_owner(std::atomic<std::uint64_t>& all) : ended(&all) {}
  allocating_owner(allocating_owner&& other) noexcept
      : ended(std::exchange(other.ended, nullptr)) {}
  allocating_owner& operator=(allocating_owner&&) = delete;
  ~allocating_owner() {
    if (ended == nullptr) return;
    auto allocated = std::make_unique<std::uint64_t>(0);
    benchmark::DoNotOptimize(allocated.get());
    // Release: pairs with the acquire in steady_state::have_all_ended().
    ended->fetch_add(1, std::memory_order_release);
  }

  std::atomic<std::uint64_t>* ended;
};

// Two streams, a pool and a deleter that are used over and over.
class steady_state {
 public:
  steady_state() = default;
  steady_state(steady_state&&) = delete;
  // Owners count in here until their end, which comes without our help.
  ~steady_state() { static_cast<void>(have_all_ended()); }

  // `turns` claims, releases, retirements and reclaims.
  void run(std::uint64_t turns, bool counts) {
    count_on_this_thread(counts);
    for (std::uint64_t done = 0; done < turns; done += row) {
      for (std::uint64_t i = 0; i < row; ++i) {
        cudaStream_t const stream = streams_[i % 2];
        auto leased = pool_.claim(stream);
        deleter_.retire(stream, thread_switch(ended_, counts));
        leased.release();
      }
      retired_ += row;
      for (cudaStream_t const stream : streams_) test::must(cudaStreamSynchronize(stream));
      await();
    }
    count_on_this_thread(false);
  }

  // A row whose owners are all pending at once, which is as many as there will ever be.
  void fill() {
    constexpr std::uint64_t enqueue_us = 20'000;  // far more than a row takes
    for (cudaStream_t const stream : streams_) test::must(test::launch_sleep(stream, enqueue_us));
    run(row, false);
  }

  // Makes the worker allocate once.
  void allocate_on_worker() {
    deleter_.retire(allocating_owner(ended_));
    ++retired_;
    await();
  }

 private:
  static constexpr std::uint64_t row = 256;  // fits in CUDA's launch queue

  void await() const { test::must(have_all_ended(), "all owners have been destroyed"); }
  [[nodiscard]] bool have_all_ended() const {
    // Acquire: pairs with the release at an owner's end.
    return test::wait_until([this] { return ended_.load(std::memory_order_acquire) == retired_; });
  }

  test::owned_stream owned_[2] = {test::make_stream(), test::make_stream()};
  cudaStream_t streams_[2] = {owned_[0], owned_[1]};
  std::atomic<std::uint64_t> ended_{0};
  std::uint64_t retired_ = 0;
  escrow::deleter deleter_;
  resource_pool<int> pool_{{.label = "steady", .deleter = &deleter_}, [] { return 0; }};
};

// A count that is always zero would prove nothing.
void require_that_counting_works(steady_state& steady) {
  std::uint64_t const before = allocations_counted();
  count_on_this_thread(true);
  auto allocated = std::make_unique<std::uint64_t>(before);
  benchmark::DoNotOptimize(allocated.get());
  count_on_this_thread(false);
  test::must(allocations_counted() == before + 1, "an allocation of this thread is counted");
  steady.allocate_on_worker();
  test::must(allocations_counted() == before + 2, "an allocation of the worker is counted");
}

void run(benchmark::State& state, std::uint64_t turns) {
  steady_state steady;
  constexpr std::uint64_t warm_up_turns = 4096;
  steady.run(warm_up_turns, false);
  steady.fill();
  // Turns the worker's counting on before anything is counted.
  steady.run(1, true);
  require_that_counting_works(steady);
  std::uint64_t const before = allocations_counted();
  for (auto _ : state) {
    auto const begin = clock::now();
    steady.run(turns, true);
    state.SetIterationTime(seconds_since(begin) / static_cast<double>(turns));
  }
  auto const counted = static_cast<double>(allocations_counted() - before);
  state.counters["turns"] = static_cast<double>(turns);
  state.counters["allocations"] = counted;
  state.counters["allocations_per_million"] = counted * 1e6 / static_cast<double>(turns);
}

}  // namespace

void register_steady_allocations(settings const& how) {
  auto const turns = static_cast<std::uint64_t>(how.choose(1'000'192, 200'192, 1024));
  add("steady/allocations", 1, benchmark::kMicrosecond, [=](benchmark::State& state) {
    run(state, turns);
  })->Repetitions(how.choose(3, 3, 2));  // a count needs no more
}

}  // namespace escrow::bench
