// SPDX-License-Identifier: Apache-2.0
// What the process's memory is held by.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "escrow/core/error.hpp"
#include "escrow/pool/resource_pool.hpp"
#include "escrow/pool/scratch_pool.hpp"
#include "escrow/version.hpp"

namespace escrow::inline v0_2 {

// What Escrow has taken of a device: `reserved`, `ranges` and `arenas` together. What pools have
// from other sources comes on top: see pool_memory::source.
struct device_memory {
  int device = 0;
  // By the memory pool of CUDA that memory_source::device() is of; `reserved_in_use` of it is
  // allocated. At least that, if CUDA does not answer.
  std::size_t reserved = 0;
  std::size_t reserved_in_use = 0;
  std::size_t ranges = 0;  // blocks of 4 MiB and more, which have addresses of their own
  std::size_t arenas = 0;  // of sharing groups
};

// A pool, until its last slot is gone. A stream_allocator has one.
struct pool_memory {
  std::string label = {};
  int device = 0;
  std::string source = {};  // memory_source::name; empty: a resource_pool's
  std::string group = {};   // the label of its sharing group; empty: none
  bool is_closed = false;   // by close_for(), or destroyed
  std::size_t slots = 0;    // those of an arena, too
  // Of these, usable by one stream alone until an event is recorded on it: see holder::waits_for.
  std::size_t slots_waiting = 0;
  // Of a resource_pool: as if all resources were as large as the last; zeros if T is no
  // device_block and does not tell, by `std::size_t bytes() const`, how large it is.
  scratch_stats bytes = {};
  std::vector<holder> holders = {};
};

// A claim of a capture from its group's arena.
struct arena_claim {
  std::size_t begin = 0;  // in the arena
  std::size_t end = 0;
  std::string pool = {};       // its label
  source_location where = {};  // line 0: not known
  // Its place in the order in which the graph's claims and releases were captured, from 0; empty:
  // not known, as of a graph that was destroyed and has execs.
  std::optional<std::uint64_t> claimed = {};
  std::optional<std::uint64_t> released = {};  // empty: not in the graph, or not known
  bool is_leased = false;                      // its lease lives
};

// What a graph has of an arena.
struct graph_layout {
  std::uint64_t id = 0;    // of its capture; 0: of calls of sharing_group::run()
  std::size_t extent = 0;  // the bytes that the group needs for it
  // In their order. Of a graph that was destroyed: its places, each once, without lines.
  std::vector<arena_claim> claims = {};
};

// A sharing group that has a pool.
struct group_layout {
  std::string label = {};
  int device = 0;
  std::size_t bytes = 0;  // mapped in its arena
  bool is_parked = false;
  int execs = 0;  // graph_execs and hoisted graphs of the group
  std::vector<graph_layout> graphs = {};
};

// What a graph, its copies and execs hold together.
struct graph_memory {
  std::uint64_t id = 0;  // of the capture; 0: built by hand
  std::size_t slots = 0;
  std::size_t owners = 0;       // of deleter::retire(), and of nodes
  std::size_t bytes = 0;        // of slots of known size; with the next
  std::size_t arena_bytes = 0;  // up to its last place in an arena, which other graphs use, too
  std::size_t graphs = 0;       // known graphs that hold it; 0: only execs or plain copies do
};

// Who holds every byte that Escrow knows of, in all pools of the process. Read one part after the
// other, without a common lock: parts may differ by what other threads do meanwhile. CUDA does not
// tell how much device memory an exec takes, nor what a kernel's code does: they are not in it.
struct memory_report {
  std::vector<device_memory> devices = {};
  std::vector<pool_memory> pools = {};  // in the order of their creation
  std::vector<group_layout> groups = {};
  std::vector<graph_memory> graphs = {};  // those that hold something
  std::size_t execs = 0;                  // graph_execs
};

// The report of this moment. Any thread, also beside captures and while pools end; takes short
// locks. Capture-safe. It never waits for the GPU. Throws std::bad_alloc. Source:
// cudaMemPoolGetAttribute.
[[nodiscard]] ESCROW_API memory_report report_memory();

// The same in words, for a log. Any thread. Throws std::bad_alloc.
//
//     device 0: 96.0 MiB reserved, 73.2 MiB of them in use; 128.0 MiB in ranges, ...
//     pool "decode" on device 0, of cudaMallocFromPoolAsync, in group "decode": 12 slots, {...}
//       "decode of 4096 bytes": capture 12 holds 3 for 5301 ms, since the claim at server.cpp:88
//     group "decode" on device 0: 502.0 MiB mapped, 65 execs
//       graph 12: 501.0 MiB, 36 claims, 1 of them leased
//     graph 12 holds 36 slots, 501.0 MiB, 501.0 MiB of them in an arena
//     65 execs, whose own device memory CUDA does not tell
[[nodiscard]] ESCROW_API std::string describe(memory_report const& report);

// The same as a JSON object on one line, with the names of the members. A line is a text,
// "server.cpp:88". A holder has its "kind": "graph", "lease", "stream" or "node"; not the time.
// What is not known is null. tools/arena_svg.py draws the layout of a group from it. Any thread.
// Throws std::bad_alloc.
[[nodiscard]] ESCROW_API std::string to_json(memory_report const& report);

}  // namespace escrow::inline v0_2
