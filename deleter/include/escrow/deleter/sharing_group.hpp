// SPDX-License-Identifier: Apache-2.0
// Graphs that share their scratch: launched one after another, never concurrently.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "escrow/core/error.hpp"
#include "escrow/core/stream.hpp"
#include "escrow/detail/enqueue.hpp"
#include "escrow/version.hpp"

namespace escrow::inline v0_2 {

struct group_order;

// How a sharing_group behaves.
struct sharing_options {
  std::string label = "group";  // in errors and reports
  // The caller promises that each stream on which something of the group is launched lives until
  // all execs and `hoisted` of the group have ended, and that no other thread begins or ends a
  // capture of it while something of the group is launched, parked or ended. Then a launch is not
  // recorded until another stream, or the end of its exec, needs that. Where this stream is
  // captured then, a launch on another one is a usage_error; what the exec held comes back with the
  // group's next launch on this stream, which has to live until then. A stream that is destroyed
  // earlier is undefined behaviour. cudaStreamLegacy and cudaStreamPerThread are treated as without
  // this.
  bool streams_outlive_group = false;
};

// Statistics of a sharing_group.
struct sharing_stats {
  std::size_t slots = 0;           // that the group's graphs hold, each once
  std::size_t bytes = 0;           // the group's arena, and slots outside of it of known size
  std::uint64_t launches = 0;      // of graph_exec, and calls of hoisted::launch() and run()
  std::uint64_t stream_waits = 0;  // launches that waited, in their stream, for another stream's
  // Capture ids (0: not known, as of clones) of graphs whose launches nothing orders. No graph_exec
  // was created from them, or from what has them as a child or named body, and hoisted::launch()
  // was not called. If such a graph is launched, it races with the others. One that was destroyed
  // is listed while plain execs or copies of it exist, and until the worker, or poll(), has
  // reclaimed what it held.
  std::vector<std::uint64_t> unordered;
  // Leases that live although the capture that claimed them has ended, as escrow::capture() or a
  // later use of the graph told: a launch of another graph may overwrite what they cover.
  std::size_t outliving = 0;
  bool is_parked = false;
};

// The same as a JSON object on one line, with the names of the members.
[[nodiscard]] ESCROW_API std::string to_json(sharing_stats const& stats);

// A launch, or sharing_group::park(), could not begin in time: another thread is inside
// hoisted::launch() of a graph that shares something with this one, or inside sharing_group::run().
class ESCROW_API group_busy : public std::runtime_error, public located_error {
 public:
  using std::runtime_error::runtime_error;
  // `failed`, at the caller's line.
  group_busy(group_busy const& failed, source_location where)
      : std::runtime_error(detail::text_at(where, failed.what())), located_error(where) {}

  [[noreturn]] void throw_at(source_location where) const override;
};

// How sharing_group::park() parks.
struct park_options {
  // True: what is in the arena is copied to pinned host memory, and back by unpark(). False: it is
  // undefined then, as scratch is between launches.
  bool keep_contents = false;
  // How long the host may wait for the group's turn, and then for its last launch.
  std::chrono::nanoseconds wait_max = std::chrono::seconds(10);
};

// What: lets the graphs of one or several pools use the same memory, one graph after another:
//   together they need what the largest needs. Pools take it by pool_options::group; graphs with
//   their claims belong to it. Scratch of memory_source::device() lies in the group's arena; else
//   graphs share slots.
//     All launches of its graphs must be ordered. graph_exec orders its own, if all bodies of
//   conditional nodes are named (instantiate_options). Other code launches inside
//   hoisted::launch(), or races: sharing_stats::unordered. Neither launch nor capture into copies
//   by plain CUDA: use graph::clone() and add_child(). Graphs that wait for each other while they
//   run hang in one group.
//     A launch overwrites what earlier ones left there, even of a lease that is kept
//   (sharing_stats::outliving). Claim what stays by claim_kept(), and for nodes of graphs built by
//   hand from a pool without the group.
//     Parts of one graph (its own nodes, child graphs) that use the group must be a single line of
//   nodes, and a conditional node's body must be the only part: see graph_exec's constructor.
// Thread safety: any thread may call anything concurrently.
// Lifetime: a handle; may be destroyed before its pools and graphs.
// Errors: usage_error for pools of different devices.
class ESCROW_API sharing_group {
 public:
  // Throws std::bad_alloc.
  explicit sharing_group(sharing_options options = {});
  // A move is a copy: none is ever empty.
  sharing_group(sharing_group const&) noexcept;
  sharing_group& operator=(sharing_group const&) noexcept;
  ~sharing_group();

  // Runs `call(stream)`, or `call()`, as one more launch of the group. `call` enqueues work on
  // `stream`; a cudaError_t that it returns is checked. The launch is behind the last
  // one, and before the next. What `call` claims there from pools of the group, on this thread and
  // for `stream`, lies in the group's arena, as if a graph had claimed it; claim_kept(),
  // claim_for_host() and claimers do not. Release it in `call`: work on other streams must be told
  // to it (record_stream) before. No lock is held meanwhile, and no other launch of the group
  // begins, as inside hoisted::launch(): see there for `wait_max` and for errors. Throws
  // usage_error too, once the work is enqueued, if a lease outlives `call`: it keeps its memory
  // from what claims later, but a graph of the group that was captured before overwrites it. So if
  // one ended where its use on another stream cannot be recorded, as on a deleter's worker.
  template <class Call>
  void run(stream_ref stream, Call&& call,
           std::chrono::nanoseconds wait_max = std::chrono::seconds(10),
           source_location where = source_location::current()) {
    detail::require_function("sharing_group::run", call, where);
    auto const its = [stream, &call] {
      return detail::status_on(stream, std::forward<Call>(call));
    };
    run_call(
        stream, [](void const* given) { return (*static_cast<decltype(its)*>(given))(); }, &its,
        wait_max, where);
  }

  // Gives the arena's memory back to the device until unpark(), and what its pools of
  // memory_source::device() have idle; the addresses stay, and graphs and execs as they are. Takes
  // the group's turn as run() does, and waits for its last launch; other work that uses what is in
  // the arena must be over. Returns the bytes. With keep_contents, the host memory is kept for the
  // next time, until the arena ends.
  //   Until unpark(), what needs the arena is a usage_error: to launch, instantiate, update, set,
  // upload, copy or hoist a graph with claims in it, to add copies or fills to it, and to claim
  // there in captures and run(). Everything may be destroyed.
  //   Throws usage_error, and nothing has changed, if it is parked; inside launch() or run() of the
  // group on this thread; while a lease in the arena lives; if an exec that plain CUDA, or a
  // kernel, launches may exist: that is so from graph::get() on until the graph and such execs are
  // destroyed, or hoist(), for each graph of plain captures, with instantiate_options::flags for
  // device launch, and with pool_options::held_until_closed; for a hoisted graph without a launch()
  // until it is released; and if the end of the last launch is not known. Throws group_busy if
  // `wait_max` was too short; cuda_error, std::bad_alloc. If CUDA can neither unmap all nor map it
  // again, the group stays parked: the cuda_error says so, and unpark() may be tried.
  std::size_t park(park_options options = {},  // NOLINT(modernize-use-nodiscard)
                   source_location where = source_location::current()) const;
  // Maps memory at the same addresses again, at once for all; if there is too little, after what
  // the group's pools, and Escrow for the device, have idle. Returns the bytes. Throws usage_error
  // if it is not parked; cuda_error, std::bad_alloc, and it is still parked.
  std::size_t unpark(  // NOLINT(modernize-use-nodiscard)
      source_location where = source_location::current()) const;

  // Throws std::bad_alloc.
  [[nodiscard]] sharing_stats stats() const;
  // The label and the statistics, for a log. Throws std::bad_alloc.
  [[nodiscard]] std::string describe() const;

  // Internal: for pools.
  [[nodiscard]] std::shared_ptr<group_order> const& order() const noexcept { return order_; }

 private:
  void run_call(stream_ref stream, cudaError_t (*run)(void const*), void const* argument,
                std::chrono::nanoseconds wait_max, source_location where) const;

  std::shared_ptr<group_order> order_;
};

// What park_all() or unpark_all() did to a group.
struct parked_group {
  std::string label;
  std::size_t bytes = 0;  // as returned by park() or unpark()
  std::string refusal;    // why it did not, as the text of the error; empty: it did
};

// sharing_group::park() for each group of the process that is not parked, one after the other; goes
// on past one that refuses. Throws std::bad_alloc. Any thread.
ESCROW_API std::vector<parked_group> park_all(park_options options = {},
                                              source_location where = source_location::current());
// The same: sharing_group::unpark() for each that is parked.
ESCROW_API std::vector<parked_group> unpark_all(source_location where = source_location::current());

}  // namespace escrow::inline v0_2
