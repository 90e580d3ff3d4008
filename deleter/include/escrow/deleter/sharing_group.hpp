// Graphs that share their scratch: launched one after another, never concurrently.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "escrow/core/error.hpp"
#include "escrow/version.hpp"

namespace escrow::inline v0_1 {

struct group_order;

// How a sharing_group behaves.
struct sharing_options {
  std::string label = "group";  // in errors and reports
};

// Statistics of a sharing_group.
struct sharing_stats {
  std::size_t slots = 0;           // that the group's graphs hold, each once
  std::size_t bytes = 0;           // of those whose size is known
  std::uint64_t launches = 0;      // of graph_exec, and calls of hoisted::launch()
  std::uint64_t stream_waits = 0;  // launches that waited, in their stream, for another stream's
  // Capture ids (0: not known, as of clones) of graphs whose launches nothing orders. No graph_exec
  // was created from them, or from what has them as a child or named body, and hoisted::launch()
  // was not called. If such a graph is launched, it races with the others. One that was destroyed
  // is listed until the worker, or poll(), has reclaimed what it held.
  std::vector<std::uint64_t> unordered;
  // Leases that live although the capture that claimed them has ended, as escrow::capture() or a
  // later use of the graph told: a launch of another graph may overwrite what they cover.
  std::size_t outliving = 0;
};

// The same as a JSON object on one line, with the names of the members.
[[nodiscard]] ESCROW_API std::string to_json(sharing_stats const& stats);

// A launch could not begin in time: another thread is inside hoisted::launch() of a graph that
// shares something with this one.
class ESCROW_API group_busy : public std::runtime_error, public located_error {
 public:
  using std::runtime_error::runtime_error;
  // `failed`, at the caller's line.
  group_busy(group_busy const& failed, source_location where)
      : std::runtime_error(detail::text_at(where, failed.what())), located_error(where) {}

  [[noreturn]] void throw_at(source_location where) const override;
};

// What: lets the graphs of one or several pools use the same slots, one graph after another:
//   together they need what the largest needs, not the sum. Give it to pools by
//   pool_options::group; each graph captured with claims of these pools then belongs to the group.
//     Claims in a capture take the smallest slot that is large enough, of those that the group's
//   graphs hold and do not use concurrently, before the pool grows. Capture the largest graph
//   first: the others then need no more. Eager claims never get a slot that a graph holds, and
//   groups never share slots.
//     All launches of the group's graphs are ordered: each waits, in its stream, for the last one,
//   unless that was on the same stream. graph_exec does that by itself; name all bodies of
//   conditional nodes (instantiate_options). Code that launches by itself, or from a hoisted graph,
//   does so inside hoisted::launch(). Other plain launches are not ordered, and race:
//   sharing_stats::unordered names such graphs. Escrow does not know plain copies (cudaGraphClone,
//   cudaGraphAddChildGraphNode): neither launch nor capture into them; use graph::clone() and
//   add_child().
//     Two graphs that wait for each other while they run must not be in one group: the order makes
//   them hang. Examples are two ranks' collectives in one process, and a kernel that spins on a
//   flag.
//     What a launch leaves in shared memory is lost at the group's next launch, even while the
//   lease is kept: other graphs may have the slot already, which sharing_stats::outliving counts.
//   For results that must stay, and for eager use after the capture, use claim_kept(), whose slot
//   no other graph gets. For nodes of graphs built by hand, claim from a pool without the group.
//     If several parts of a graph use one group (its own nodes, its child graphs), the graph must
//   be a single line of nodes, as graph::add_child() on a new graph makes it. A body of a
//   conditional node must be the only part that uses the group, and a child graph must not use the
//   slot of a lease between its claim and release. graph_exec and hoist() refuse other graphs,
//   graph::add_child() what would overwrite a lease that lives. Instead add the parts as child
//   graphs of a new graph.
// Thread safety: any thread may call anything concurrently.
// Lifetime: a handle; may be destroyed before its pools and graphs.
// Errors: usage_error for pools of different devices.
class ESCROW_API sharing_group {
 public:
  // Throws std::bad_alloc.
  explicit sharing_group(sharing_options options = {});

  // Throws std::bad_alloc.
  [[nodiscard]] sharing_stats stats() const;
  // The label and the statistics, for a log. Throws std::bad_alloc.
  [[nodiscard]] std::string describe() const;

  // Internal: for pools.
  [[nodiscard]] std::shared_ptr<group_order> const& order() const noexcept { return order_; }

 private:
  std::shared_ptr<group_order> order_;
};

}  // namespace escrow::inline v0_1
