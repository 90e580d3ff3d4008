// What scratch costs that many graphs share: bytes of the device, and the time of a launch.
//
// footprint/WAY/graphs:G: G graphs of 8 tiny kernels, each with scratch of one size, are launched
// on one stream in a recorded pattern: at random, or, in footprint_long/..., each for 50 launches.
// Each way takes turns with plain launches over one arena in the same pattern: "bare" in the
// counters. device_kib is what the device gave for the scratch of all graphs.
//
// footprint_mixed: graphs with several blocks, of a model's batch sizes. footprint_races: launches
// on several streams that find out whether another one runs at the same time.
#include <random>

#include "graphs.hpp"
#include "scratch_ways.hpp"

namespace escrow::bench {
namespace {

constexpr int kernels_of_each = 8;
constexpr std::size_t graphs_in_figures = 64;

struct launch_pattern {
  char const* name;    // how names of benchmarks begin
  int launches_alike;  // of one graph before another is drawn
};

constexpr launch_pattern random_pattern{"footprint/", 1};
constexpr launch_pattern long_pattern{"footprint_long/", 50};

// The graphs in the order of their launches, the same in each run.
std::vector<std::size_t> recorded(launch_pattern const& of, std::size_t graphs) {
  constexpr std::size_t launches = 1000;
  std::minstd_rand next(static_cast<unsigned>(graphs));
  std::vector<std::size_t> order;
  while (order.size() < launches) {
    std::size_t const graph = next() % graphs;
    order.insert(order.end(), static_cast<std::size_t>(of.launches_alike), graph);
  }
  return order;
}

// Graphs that have been launched once, and are launched in a pattern from now on.
relaunch_form make_family(cudaStream_t stream, way_arm const& which, launch_pattern const& pattern,
                          std::size_t graphs, std::size_t bytes) {
  scratch_way const way = which.setup(bytes);
  std::vector<launch_call> calls;
  while (calls.size() < graphs) {
    calls.push_back(way.exec_of(stream, [&] {
      void* const scratch = way.claim(stream, bytes);
      enqueue_row(stream, kernels_of_each);
      way.release(stream, scratch);
    }));
    calls.back()(stream);
  }
  test::must(cudaStreamSynchronize(stream));
  constexpr std::size_t kib = 1024;
  relaunch_form form = in_turn(std::move(calls), recorded(pattern, graphs));
  form.facts["scratch_kib"] = static_cast<int>(scratch_pool::block_bytes(bytes) / kib);
  form.facts["device_kib"] = static_cast<int>(way.device_bytes() / kib);
  form.owed = [way] { return std::size_t{0}; };
  return form;
}

void add_family(settings const& how, launch_pattern const& pattern, way_arm const& which,
                std::size_t graphs) {
  if (!which.is_for(how)) return;
  std::size_t const bytes = std::size_t{1} << (how.is_simulated ? 16U : 26U);
  auto const maker_of = [=](way_arm const& of) {
    return [=](cudaStream_t stream) { return make_family(stream, of, pattern, graphs, bytes); };
  };
  add_launches(how, pattern.name + std::string(which.name) + "/graphs:" + std::to_string(graphs),
               maker_of(way_named("arena")), maker_of(which),
               {.instances = 3, .row = 400, .steady = 200, .bursts = 4});
}

}  // namespace

void register_all(settings const& how) {
  register_exec_sets(how);
  for (char const* const name : {"arena_again", "shared", "memory_nodes", "private"}) {
    way_arm const which = way_named(name);
    for (std::size_t const graphs : {1U, 4U, 16U, 64U, 256U}) {
      add_family(how, random_pattern, which, graphs);
    }
    add_family(how, long_pattern, which, graphs_in_figures);
  }
  register_mixed(how);
  register_races(how);
}

}  // namespace escrow::bench
