// SPDX-License-Identifier: Apache-2.0
// What it costs to park a sharing group, and whom it disturbs.
//
// park/gib:N/CONTENTS: a graph with N GiB of scratch in blocks is parked and unparked again and
// again, and launched in between. Its contents are discarded, or kept in host memory. park_ms and
// unpark_ms; first_park_ms: while the arena is still in the pieces in which it grew. over_freed:
// the device's memory that came back, over the scratch. launch_max_us: the slowest launch of
// another group's exec meanwhile, from another thread; launch_max_alone_us: as long without
// parking. relaunch_of_before: a launch of the parked graph's exec, over one before the first park.
// wrong_values: what the graph did not find where it had written it.
#include <atomic>
#include <escrow/deleter.hpp>
#include <escrow/graph.hpp>
#include <escrow/pool.hpp>
#include <thread>

#include "bench.hpp"
#include "graphs.hpp"
#include "memory.hpp"
#include "scratch_ways.hpp"

namespace escrow::bench {
namespace {

constexpr std::size_t blocks = 16;
constexpr std::size_t values = 1024;

// A sharing group with a graph that claims so many bytes, and checks what it wrote there.
struct scratch_user {
  explicit scratch_user(cudaStream_t stream, std::size_t bytes)
      : exec(capture(stream_ref(stream), [&](stream_ref on) { enqueue(on.get(), bytes); })) {}

  void enqueue(cudaStream_t on, std::size_t bytes) {
    std::vector<lease<device_block>> claimed;
    for (std::size_t i = 0; i < blocks; ++i) {
      claimed.push_back(pool.claim(on, bytes / blocks));
      test::must(test::launch_fill(on, first_of(claimed[i]), values, static_cast<int>(i)));
    }
    for (std::size_t i = 0; i < blocks; ++i) {
      test::must(
          test::launch_check(on, first_of(claimed[i]), values, static_cast<int>(i), wrong.data()));
    }
  }
  static int* first_of(lease<device_block> const& of) { return static_cast<int*>(of->data()); }

  sharing_group group{{.label = "parked"}};
  scratch_pool pool{{.slots_max = blocks, .label = "parked", .group = group}};
  test::device_ints wrong;
  graph_exec exec;
};

// Launches an exec from a thread of its own, and notes the slowest launch.
class other_launches {
 public:
  other_launches() {
    thread_ = std::thread([this] { run(); });
  }
  ~other_launches() {
    is_over_.store(true);
    thread_.join();
  }
  other_launches(other_launches const&) = delete;

  // The slowest launch while `meanwhile()` runs, in microseconds.
  template <class Meanwhile>
  double slowest_us(Meanwhile meanwhile) {
    for (int const begin = launches_.load(); launches_.load() < begin + 100;) {
      std::this_thread::yield();
    }
    slowest_.store(0);
    meanwhile();
    return slowest_.load();
  }

 private:
  void run() {
    constexpr int in_flight_max = 64;
    test::owned_stream const stream = test::make_stream();
    scratch_user user(stream, values * sizeof(int) * blocks);
    while (!is_over_.load()) {
      double const us = us_of([&] { user.exec.launch(stream.get()); });
      if (us > slowest_.load()) slowest_.store(us);
      if (++launches_ % in_flight_max == 0) test::must(cudaStreamSynchronize(stream));
    }
    test::must(cudaStreamSynchronize(stream));
  }

  std::atomic<bool> is_over_{false};
  std::atomic<int> launches_{0};
  std::atomic<double> slowest_{0};
  std::thread thread_;
};

double launch_us(graph_exec& exec, cudaStream_t stream) {
  constexpr int launches = 100;
  return us_of([&] {
           for (int i = 0; i < launches; ++i) exec.launch(stream);
           test::must(cudaStreamSynchronize(stream));
         }) /
         launches;
}

void run_parked(benchmark::State& state, std::size_t bytes, bool keeps, int parks) {
  if (settled_free_bytes() < static_cast<double>(bytes) * 1.05) {
    state.SkipWithError("too little memory is free");
    return;
  }
  test::owned_stream const stream = test::make_stream();
  park_options const how{.keep_contents = keeps};
  repeat(state, [&] {
    scratch_user user(stream, bytes);
    other_launches others;
    double const before = launch_us(user.exec, stream);
    double const first = us_of([&] { user.group.park(how); });
    user.group.unpark();
    std::vector<double> park, unpark, launch, freed;
    double const slowest = others.slowest_us([&] {
      for (int i = 0; i < parks; ++i) {
        launch.push_back(launch_us(user.exec, stream));
        double const free_then = free_device_bytes();
        park.push_back(us_of([&] { user.group.park(how); }));
        freed.push_back((free_device_bytes() - free_then) / static_cast<double>(bytes));
        unpark.push_back(us_of([&] { user.group.unpark(); }));
      }
    });
    double const alone =
        others.slowest_us([&] { std::this_thread::sleep_for(std::chrono::milliseconds(100)); });
    launch.push_back(launch_us(user.exec, stream));
    constexpr double us_of_a_ms = 1000;
    state.counters.insert({{"park_ms", quantile(park, 0.5) / us_of_a_ms},
                           {"unpark_ms", quantile(unpark, 0.5) / us_of_a_ms},
                           {"first_park_ms", first / us_of_a_ms},
                           {"over_freed", quantile(freed, 0.5)},
                           {"launch_max_us", slowest},
                           {"launch_max_alone_us", alone},
                           {"relaunch_of_before", quantile(launch, 0.5) / before},
                           {"wrong_values", user.wrong.read().front()}});
    return quantile(park, 0.5) + quantile(unpark, 0.5);
  });
}

}  // namespace

void register_parked(settings const& how) {
  std::size_t const gib = std::size_t{1} << (how.is_simulated ? 20U : 30U);
  auto const add_size = [&](std::size_t size, bool keeps) {
    add("park/gib:" + std::to_string(size) + (keeps ? "/kept" : "/discarded"),
        {1, how.choose(3, 1)}, &run_parked, size * gib, keeps, how.choose(9, 2));
  };
  for (std::size_t const size : {1U, 4U, 16U, 64U}) add_size(size, false);
  for (std::size_t const size : {1U, 4U}) add_size(size, true);
}

}  // namespace escrow::bench
