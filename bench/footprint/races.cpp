// Whether launches that share scratch run one after another, on several streams.
//
// Each stream has a thread and graphs of its own. A graph writes its number all over the scratch,
// waits, and reads it back: wrong_values counts what another graph overwrote meanwhile. Launches of
// one graph are ordered by CUDA, so a graph's number finds all that a launch's number would. In an
// arena with plain launches there must be such values: the detector works.
#include <random>

#include "memory.hpp"
#include "scratch_ways.hpp"
#include "thread_team.hpp"

namespace escrow::bench {
namespace {

constexpr std::size_t values = 1024;
constexpr std::size_t graphs_of_a_stream = 4;
constexpr std::uint64_t wait_us = 2;

std::vector<launch_call> detectors(scratch_way const& way, std::size_t count, int* wrong_values) {
  test::owned_stream const stream = test::make_stream();
  std::vector<launch_call> execs;
  while (execs.size() < count) {
    int const number = static_cast<int>(execs.size()) + 1;
    execs.push_back(way.exec_of(stream, [&] {
      auto* const scratch = static_cast<int*>(way.claim(stream, values * sizeof(int)));
      test::must(test::launch_fill(stream, scratch, values, number));
      test::must(test::launch_sleep(stream, wait_us));
      test::must(test::launch_check(stream, scratch, values, number, wrong_values));
      way.release(stream, scratch);
    }));
  }
  return execs;
}

void run_races(benchmark::State& state, way_arm const& which, int streams, int rounds,
               int launches) {
  test::device_ints const wrong;
  scratch_way const way = which.setup(values * sizeof(int));
  auto const execs =
      detectors(way, graphs_of_a_stream * static_cast<std::size_t>(streams), wrong.data());
  thread_team team(streams, [&](std::size_t thread) -> thread_team::part {
    std::size_t const first = graphs_of_a_stream * thread;
    auto const mine = std::make_shared<test::owned_stream>(test::make_stream());
    return [&, mine, first, next = std::minstd_rand(first + 1)]() mutable {
      for (int i = 0; i < launches; ++i) execs[first + next() % graphs_of_a_stream](*mine);
    };
  });
  repeat(state, [&] {
    double seconds = 0;
    for (int i = 0; i < rounds; ++i) seconds += team.round();
    return seconds * 1e6 / rounds / launches;
  });
  state.counters.insert(
      {{"launches", 1.0 * streams * rounds * launches}, {"wrong_values", wrong.read().front()}});
}

}  // namespace

void register_races(settings const& how) {
  constexpr int launches_in_all = 100'000;
  int const launches = how.choose(500, 10);  // of a thread, in a round
  for (int const streams : {2, 8}) {
    int const in_a_round = streams * launches;
    int const rounds = how.choose((launches_in_all + in_a_round - 1) / in_a_round, 2);
    for (char const* const name : {"shared", "arena"}) {
      way_arm const which = arm_named(name, ways);
      add("footprint_races/" + std::string(name) + "/streams:" + std::to_string(streams), {1, 1},
          &run_races, which, streams, rounds, launches);
    }
  }
}

}  // namespace escrow::bench
