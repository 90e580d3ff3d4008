// SPDX-License-Identifier: Apache-2.0
// How the simulated runtime runs: free, with real threads, or stepped, one seeded choice at a time.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace escrow::sim {

// How the runtime runs from the next reset() on.
struct options {
  // False: each stream has its own thread, and one more runs callbacks. True: no threads; step()
  // moves the machine.
  bool stepped = false;
  // A handle that was given up last is given again first, as CUDA's driver does; stepped, the seed
  // decides each time whether. False: never, so that what a library does depends on no address.
  bool reuses_handles = true;
  // Decides every choice of a stepped run, and the delays of destructors in a free one.
  std::uint64_t seed = 1;
  // How many devices there are.
  int devices = 2;
  // How much memory each has.
  std::size_t device_memory = std::size_t{64} << 30;
  // Whether devices have the driver's virtual memory management.
  bool has_virtual_memory = true;
  // Kernels and graphs are not launched while a cudaFree or cudaFreeHost waits for a device, as in
  // CUDA.
  bool frees_block_launches = false;
  // A host call that blocks for longer than this aborts the program with a message.
  std::chrono::seconds sync_limit{90};
  // A blocking call aborts after so many steps in a row that finished nothing (stepped only).
  std::uint64_t fruitless_steps_max = 20'000;
  // What cudaDriverGetVersion says; 0: the version of the headers. From 13010 on the driver has
  // cuGraphGetId.
  int driver_version = 0;
  // The major number of each device's compute capability.
  int compute_capability = 9;
  // The ids of graphs count up, also beyond a reset(); from now on they are no smaller than this.
  std::uint64_t first_graph_id = 1;
};

// Starts afresh: pending work is dropped, user-object destructors that have not run never run,
// memory is freed, all handles become invalid, counters return to zero. No other thread may be
// inside a CUDA call.
void reset(options const& how = {});

// What the last reset() asked for.
[[nodiscard]] options current_options();

// The same as options::compute_capability, until the next reset(). Any thread.
void set_compute_capability(int major);

// The same as options::device_memory, until the next reset(). What is allocated stays, also if it
// is more. Any thread.
void set_device_memory(std::size_t bytes);

// The same as options::has_virtual_memory, until the next reset(). Any thread.
void set_virtual_memory(bool is_there);

// The same as options::frees_block_launches, until the next reset(). Any thread.
void set_frees_block_launches(bool do_block);

// Stepped only: from now on choices are those of a run with this seed. All else stays: handles,
// time, and what is pending. For many runs in one process, whose libraries keep handles.
void reseed(std::uint64_t seed);

// Stepped only: makes one seeded choice among what could happen next and does it. Returns false if
// nothing is pending. Time moves by a microsecond, or on to the next thing that is due.
bool step();

// Stepped: steps until nothing is pending. Free-running: blocks until nothing is pending.
void run_until_idle();

// Stepped only: lets `how_long` of virtual time pass; what falls due is then ready, and nothing is
// run by this.
void advance(std::chrono::nanoseconds how_long);

// Whether calls work in children of fork(), where CUDA's fail: by default they do not. For tools
// that fork in a process whose threads are at rest, as GoogleTest's "fast" death tests may. Any
// thread.
void let_forked_children_call(bool may);

// Whether work may use the same memory where nothing orders it, nodes of a graph, too: see the
// guide to testing. By default it may not. Any thread. reset() sets it to false.
void let_work_share(bool may);

// The time since the last reset(): virtual if stepped.
[[nodiscard]] std::chrono::nanoseconds now();

}  // namespace escrow::sim
