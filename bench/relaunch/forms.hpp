// The ways to run the same tiny kernels, with one temporary, over and over.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstddef>
#include <escrow/graph.hpp>
#include <map>
#include <vector>

#include "bench.hpp"
#include "handles.hpp"

namespace escrow::bench {

// Lines of tiny kernels that run side by side.
struct shape {
  char const* name;  // as it stands in the names of benchmarks
  int branches;
  int kernels;  // in each of them
};

inline constexpr shape line_of_8{"kernels:8", 1, 8};

// Nodes by type and edges, by the names that they have as counters: "nodes_kernel", "edges".
using graph_facts = std::map<std::string, int>;

// One form, ready to be launched on the stream it was made for.
struct relaunch_form {
  // Pool slots that the graph holds now.
  std::function<std::size_t()> slots_held = [] { return std::size_t{0}; };
  // When launch and upload are gone, and with them the exec: waits a bounded time for destructors,
  // and returns how many have not run.
  std::function<std::size_t()> owed = [] { return std::size_t{0}; };
  // Enqueues one run of the kernels. This and the next are destroyed before the ones above, which
  // keep what the exec needs.
  std::function<void(cudaStream_t)> launch;
  // Copies what launch() needs to the device ahead of it.
  std::function<void(cudaStream_t)> upload = [](cudaStream_t) {};
  graph_facts facts;  // what the graph consists of; nothing without a graph

  // The last call; the stream must be idle. Returns how many destructors have not run.
  [[nodiscard]] std::size_t end() {
    launch = upload = nullptr;
    return owed();
  }
};

// A form that launches an exec of `graph`, which may go: instantiated with plain CUDA calls, and by
// Escrow, which leaves it bare. `rest` has what the exec needs as long as it lives.
[[nodiscard]] relaunch_form form_of(cudaGraph_t graph, relaunch_form rest = {});
[[nodiscard]] relaunch_form form_of(graph const& graph, relaunch_form rest);
// Waits for what `deleter` has to destroy; for relaunch_form::owed.
[[nodiscard]] std::size_t owed_by(escrow::deleter& deleter);

using form_setup = relaunch_form(cudaStream_t stream, shape const& of);
[[nodiscard]] arm<form_setup> form_named(std::string_view name);

// How often launches are measured, on a GPU; few else.
struct sizes {
  int instances;  // pairs of execs in one repetition
  int row;        // launches in a row
  int steady;     // launches in a long burst
  int bursts;     // short ones for each pair
};

// Measures what a launch costs, of a bare graph and of another form that does the same work, in
// turns. Both are made anew in every iteration, since two execs of like graphs differ by chance.
using form_maker = std::function<relaunch_form(cudaStream_t stream)>;
void add_launches(settings const& how, std::string const& name, form_maker const& bare,
                  form_maker const& form, sizes const& gpu);

// How often each benchmark of launches is repeated.
[[nodiscard]] inline int repetitions(settings const& how) {
  return how.choose(9, 1);
}

}  // namespace escrow::bench
