// SPDX-License-Identifier: Apache-2.0
// What a launch costs, of a bare graph and of another form that does the same work, in turns.
#pragma once

#include <cuda_runtime_api.h>

#include <escrow/graph.hpp>
#include <map>

#include "bench.hpp"

namespace escrow::bench {

using launch_call = std::function<void(cudaStream_t stream)>;

// What a graph consists of, but for its child graphs, by the names of counters. "memory_nodes":
// those that allocate or free.
using graph_facts = std::map<std::string, int>;
[[nodiscard]] graph_facts facts_of(cudaGraph_t graph);

// One form, ready to be launched on the stream it was made for.
struct relaunch_form {
  // When launch and upload are gone, and with them the exec: waits until what it kept is destroyed.
  std::function<void()> settle{};
  // Enqueues one run of the work. This and the next are destroyed before the one above, which keeps
  // what the exec needs.
  launch_call launch;
  // If it has one: enqueues so many runs.
  std::function<void(cudaStream_t stream, int times)> launch_many{};
  // Copies what launch() needs to the device ahead of it.
  launch_call upload = [](cudaStream_t) {};
  graph_facts facts{};

  // The last call; the stream must be idle.
  void end() {
    launch = upload = nullptr;
    launch_many = nullptr;
    if (settle) settle();
  }
};

// A form that launches an exec of `graph`, which may go: instantiated with plain CUDA calls, and by
// Escrow, which leaves it bare. `settle` keeps what the exec needs.
[[nodiscard]] relaunch_form form_of(cudaGraph_t graph, std::function<void()> settle = {});
[[nodiscard]] relaunch_form form_of(graph const& graph, std::function<void()> settle = {});

// How often launches are measured, on a GPU; few else.
struct sizes {
  int instances;  // pairs of execs in one repetition
  int row;        // launches in a row
  int steady;     // launches in a long burst
  int bursts;     // short ones for each pair
};

// Both are made anew in every iteration, since two execs of like graphs differ by chance. The time
// is microseconds per launch in a long row with one synchronization at its end. The host's part is
// the time to enqueue, on an idle stream: `host_us` in a burst of up to 200 launches, where an exec
// with a user object blocks and a bare one does not; `host_burst_us` in a burst of 16, where none
// does. `..._of_bare`: the shares of the bare graph's figures.
using form_maker = std::function<relaunch_form(cudaStream_t stream)>;
void add_launches(settings const& how, std::string const& name, form_maker const& bare,
                  form_maker const& form, sizes const& gpu);

// How often each benchmark of launches is repeated.
[[nodiscard]] inline int repetitions(settings const& how) {
  return how.choose(9, 1);
}

}  // namespace escrow::bench
