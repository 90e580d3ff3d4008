// Eager claims of a pool with many free slots, and over many streams, beside the calls that no pool
// with events can do without.
#include <benchmark/benchmark.h>

#include <escrow/deleter.hpp>
#include <escrow/pool.hpp>
#include <optional>
#include <string>
#include <vector>

#include "capture_measures.hpp"
#include "differences.hpp"
#include "handles.hpp"
#include "kernels.hpp"
#include "memory.hpp"
#include "registering.hpp"
#include "status.hpp"

namespace escrow::bench {
namespace {

class pool_on_streams {
 public:
  explicit pool_on_streams(std::size_t slots)
      : slots_(slots),
        pool_({.slots_max = slots, .label = "eager", .deleter = &deleter_}, [] { return 0; }) {}

  void make_streams(int count) {
    streams_.clear();
    for (int i = 0; i < count; ++i) streams_.push_back(test::make_stream());
  }
  // Makes all slots, and releases them on `stream`. Some at a time, so that CUDA's queue has room.
  void make_slots(cudaStream_t stream, bool is_blocked) {
    std::vector<lease<int>> claimed;
    for (std::size_t i = 0; i < slots_; ++i) claimed.push_back(pool_.claim(stream));
    for (std::size_t i = 0; i < slots_; ++i) {
      claimed[i].release();
      if (!is_blocked && i % 512 == 0) test::must(cudaStreamSynchronize(stream));
    }
  }
  // One claim and release on each stream, beside the floor of both.
  double measure(differences& times) {
    return times.add(
               [this] {
                 for (auto const& each : streams_) floor(each);
               },
               [this] {
                 for (auto const& each : streams_) pool_.claim(each.get()).release();
               },
               static_cast<int>(streams_.size())) /
           static_cast<double>(streams_.size());
  }
  void sync() const {
    for (auto const& each : streams_) test::must(cudaStreamSynchronize(each));
  }

 private:
  void floor(cudaStream_t stream) const {
    cudaStreamCaptureStatus status{};
    unsigned long long id = 0;
    test::must(cudaStreamGetCaptureInfo(stream, &status, &id, nullptr, nullptr, nullptr, nullptr));
    test::must(cudaStreamGetId(stream, &id));
    test::must(cudaEventRecord(event_, stream));
  }

  std::size_t slots_;
  test::owned_event event_ = test::make_event();
  std::vector<test::owned_stream> streams_;
  escrow::deleter deleter_;
  resource_pool<int> pool_;
};

// All slots were released on another stream, whose work is done, or is not.
void many_free(benchmark::State& state, int slots, bool is_blocked) {
  constexpr int streams = 64;
  differences times;
  for (auto _ : state) {
    require_time();
    test::pinned_flag flag;
    test::owned_stream const first = test::make_stream();
    pool_on_streams world(static_cast<std::size_t>(slots));
    if (is_blocked) test::must(test::launch_wait_flag(first, flag.get()));
    world.make_slots(first, is_blocked);
    if (!is_blocked) test::must(cudaStreamSynchronize(first));
    world.make_streams(streams);  // new to the pool: none has a slot of its own
    state.SetIterationTime(world.measure(times));
    flag.raise();
    test::must(cudaStreamSynchronize(first));
    world.sync();
  }
  times.report(state);
}

// Each stream has a slot of its own.
void many_streams(benchmark::State& state, int streams) {
  pool_on_streams world(static_cast<std::size_t>(streams));
  world.make_streams(streams);
  differences warm_up, times;
  for (int i = 0; i < 2; ++i) static_cast<void>(world.measure(warm_up));
  for (auto _ : state) {
    require_time();
    world.sync();
    state.SetIterationTime(world.measure(times));
  }
  world.sync();
  times.report(state);
}

}  // namespace

void register_eager(settings const& how) {
  constexpr auto us = benchmark::kMicrosecond;
  int const idle = how.choose(16'384, 16'384, 1024);
  // A GPU's stream takes about 1,000 records behind a kernel before it blocks the host.
  int const busy = how.choose(512, 16'384, 512);
  int const streams = how.choose(1024, 1024, 64);
  add("capture/eager/free_idle:" + std::to_string(idle), how.choose(3, 1, 1), us,
      [=](benchmark::State& state) { many_free(state, idle, false); })
      ->Repetitions(repetitions(how));
  add("capture/eager/free_busy:" + std::to_string(busy), how.choose(3, 1, 1), us,
      [=](benchmark::State& state) { many_free(state, busy, true); })
      ->Repetitions(repetitions(how));
  add("capture/eager/streams:" + std::to_string(streams), how.choose(10, 2, 1), us,
      [=](benchmark::State& state) { many_streams(state, streams); })
      ->Repetitions(repetitions(how));
}

}  // namespace escrow::bench
