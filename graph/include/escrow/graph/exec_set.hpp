// SPDX-License-Identifier: Apache-2.0
// One executable graph for many graphs of equal shape, which are launched one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "escrow/core/stream.hpp"
#include "escrow/deleter/deleter.hpp"
#include "escrow/graph/graph.hpp"
#include "escrow/graph/graph_exec.hpp"
#include "escrow/version.hpp"

namespace escrow::inline v0_2 {

// What an exec_set has. How much device memory its execs take is not known: CUDA tells it of no
// exec, and the free memory before and after says little, since CUDA keeps what earlier execs had.
struct exec_set_stats {
  std::size_t members = 0;     // graphs
  std::size_t execs = 0;       // each takes device memory
  std::uint64_t switches = 0;  // launches that had to update their exec
  // Why graphs got an exec that no earlier member had, in order: e.g. "its edges differ", from the
  // last exec that was tried.
  std::vector<std::string> reasons;
};

// What: graphs, e.g. one for each batch size, that share execs. Graphs with the same nodes, edges,
//   kernels and launch attributes have one exec; their grids, blocks, arguments, addresses and
//   sizes may differ. Launching another of them than before updates the exec (cudaGraphExecUpdate):
//   that takes host time at each switch, where an exec for each takes device memory. A graph gets
//   an exec of its own if an update cannot change an exec to it faithfully, as for conditional and
//   memory nodes and for other cluster dimensions: stats() says why. Launches of graphs that share
//   an exec run one after another, as those of one graph_exec do. Each waits for execs that share
//   something with its own graph, as graph_exec::launch() does.
// Thread safety: one thread at a time; different sets concurrently, also if they share something.
// Lifetime: has the graphs, and what they held, until its end; none can be taken out. May be
//   destroyed at any time, as a graph_exec: what a graph held is released after its last launch.
// Capture: as graph_exec.
// Errors: usage_error if this was moved from; cuda_error. The destructor ignores the status.
// Example: docs/guides/graphs.md.
class ESCROW_API exec_set {
 public:
  // What: a graph in a set. A value; it refers to the set, also after that was moved.
  class member {
   public:
    member() noexcept = default;  // of no set

   private:
    friend class exec_set;
    member(std::uint64_t set, std::size_t index) noexcept : set_(set), index_(index) {}

    std::uint64_t set_ = 0;
    std::size_t index_ = 0;
  };

  exec_set();  // throws std::bad_alloc
  exec_set(exec_set&& other) noexcept;
  exec_set& operator=(exec_set&& other) noexcept;
  ~exec_set();

  // Takes the graph, and its references off it, as hoist() does; it must not be changed any more.
  // Updates the first exec that it fits, also with launches of it in flight, or instantiates one:
  // see graph_exec's constructor. On failure throws cuda_error, std::bad_alloc, usage_error, and
  // `source`, set and execs are unchanged. Source: cudaGraphExecUpdate.
  //   Other cluster dimensions do not fit: an update of an exec that was launched keeps the old
  // ones and reports success (measured). On compute capability 10 and newer no clusters do, since
  // CUDA does not tell their preferred size.
  [[nodiscard]] member add(graph&& source, instantiate_options const& options = {},
                           source_location where = source_location::current());

  // Enqueues one run of a graph of this set: graph_exec::launch(), after an update if its exec ran
  // another graph before. Earlier launches, also in flight, are not affected. usage_error for a
  // member of another set. If the update fails, throws cuda_error, nothing is enqueued, and the set
  // is unchanged. Source: cudaGraphExecUpdate, cudaGraphLaunch.
  void launch(member which, stream_ref stream, source_location where = source_location::current());

  // Both are empty if the set was moved from. They throw std::bad_alloc.
  [[nodiscard]] exec_set_stats stats() const;
  [[nodiscard]] resource_usage held() const;  // by all its graphs

 private:
  struct state;

  [[nodiscard]] state& require(char const* call) const;

  std::unique_ptr<state> state_;  // null if moved from
};

}  // namespace escrow::inline v0_2
