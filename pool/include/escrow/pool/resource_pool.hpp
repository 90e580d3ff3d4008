// SPDX-License-Identifier: Apache-2.0
// Pools of resources that are claimed for a stream and released, captured or not.
#pragma once

#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "escrow/core/error.hpp"
#include "escrow/core/stream.hpp"
#include "escrow/deleter/deleter.hpp"
#include "escrow/deleter/kernel_argument.hpp"
#include "escrow/deleter/sharing_group.hpp"
#include "escrow/detail/reclaimable.hpp"
#include "escrow/detail/slot_pool.hpp"
#include "escrow/pool/claimer.hpp"  // IWYU pragma: export
#include "escrow/pool/lease.hpp"    // IWYU pragma: export
#include "escrow/version.hpp"

namespace escrow::inline v0_2 {

// Options of a pool, which copies them. The deleter may be destroyed before the pool.
struct pool_options {
  // Maximum number of resources, each until it is destroyed, at least 1; empty: 64, in a
  // stream_allocator no limit. A graph holds those it uses: see resource_pool.
  std::optional<std::size_t> slots_max = {};
  // The resources' device; -1: the device current when the pool is created.
  int device = -1;
  // How long claim() may block the host when all resources are out. Zero: it throws at once.
  std::chrono::nanoseconds host_wait_max{0};
  // How long a claim in a capture, or for the host, may block the host until eager work on free
  // resources is done: neither can wait for it in the stream. At a limit also until what is being
  // freed is freed.
  std::chrono::nanoseconds capture_wait_max = std::chrono::seconds(10);
  // How long claim() that finds no memory may block the host while the deleter's worker, or that of
  // deleter::global(), has something to destroy that may give it back. Zero: it does not wait.
  std::chrono::nanoseconds reclaim_wait_max = std::chrono::milliseconds(100);
  std::string label = "pool";  // in errors and reports
  // Notes for each lease the claim's source line and time, which holders(), close_for(), describe()
  // and pool_exhausted then name. A claim and a release take one more lock each.
  bool track_leases = false;
  // The deleter whose worker recycles and destroys; null means deleter::global().
  escrow::deleter* deleter = nullptr;
  // The group whose graphs share this pool's slots; none: each graph has its own. Before the pool
  // grows, a claim in a capture takes the smallest slot that is large enough, of those that the
  // group's graphs hold and do not use concurrently. Eager claims never get a slot that a graph
  // holds, and groups never share slots.
  std::optional<sharing_group> group = {};
  // Maximum number of released slots that a claimer, or a stream of streams_outlive_pool, keeps
  // without an event. All together keep at most half of slots_max, and none more than it leaves to
  // the others; where nothing is left, each release records.
  std::size_t unrecorded_max = 16;
  // The caller promises that each stream given to the pool lives until the pool is destroyed, and
  // that none begins or ends a capture on another thread during a call with it, close_for(), or the
  // pool's destructor. Then releases record no event until another stream needs the slot, as those
  // of a claimer: the next call with that stream records. Until then trim() does not reach what the
  // stream keeps. A stream that is destroyed earlier is undefined behaviour. A deleter that
  // destroys the pool leaks what has no event then. cudaStreamPerThread is treated as without this.
  bool streams_outlive_pool = false;
  // The host writes the resources, as pinned staging buffers: every claim is a claim_for_host(). A
  // scratch_pool also takes it from memory_source::is_host_written.
  bool host_ordered = false;
  // What captures claim stays until close_for(), not only as long as its graph, so that neither the
  // graph nor an exec has a user object, which would slow each launch: for libraries whose users
  // instantiate graphs by plain CUDA. Within one capture slots are reused as ever. close_for() then
  // says that no exec of these graphs is launched any more, and that all launches but those of
  // graph_exec have ended: no call can find that out. A pool that ends without it leaks and counts
  // these slots (deleter_stats::leaked), since execs may live, and reports a usage_error.
  bool held_until_closed = false;
  // For debugging: releases of leases, and claims of claimers, throw usage_error if their stream
  // was destroyed and another one has its handle, which they would use otherwise. If none has, CUDA
  // crashes in any call with the handle (measured, driver 580). The simulated runtime ends the
  // process there by itself; for a reused handle it needs this option, too.
  bool check_streams = false;
};

// Statistics, read one by one, so they may be inconsistent by a few while other threads use the
// pool. There is no peak of leases, which would cost each claim an atomic operation. slots_peak has
// the most slots that existed at a time.
struct pool_stats {
  std::size_t slots = 0;           // resources, without those that are leaked or being destroyed
  std::size_t leased = 0;          // of them, in leases and not held by graphs
  std::size_t idle = 0;            // of them, free; earlier work may still use them
  std::size_t unrecorded = 0;      // of the idle ones, only for their stream now: see claimer
  std::size_t in_graphs = 0;       // of them, held by graphs; may be leased, too
  std::size_t deferred = 0;        // of them, with a deferred record: see lease
  std::size_t slots_peak = 0;      // the highest `slots` so far
  std::uint64_t grown = 0;         // resources created so far
  std::uint64_t hits = 0;          // claims of the stream's own last slot, or one known to be done
  std::uint64_t stream_waits = 0;  // claims that made their stream wait for another one
  std::uint64_t host_waits = 0;    // claims that blocked the host
  std::uint64_t edges_added = 0;   // claims in a capture that ordered one branch after another
};

// The same as a JSON object on one line, with the names of the members.
[[nodiscard]] ESCROW_API std::string to_json(pool_stats const& stats);

// A holder of slots of a pool: a graph with its clones and execs; all leases, or with
// pool_options::track_leases one lease; or a stream with missing records. A slot that both a graph
// and a tracked lease hold, or several nodes of graphs built by hand, is listed for each.
// Example: examples/shutdown.cpp.
struct holder {
  // The graph's capture id; 0: none, or a node of a graph built by hand.
  std::uint64_t capture_id = 0;
  std::string label;      // the pool's label
  std::size_t slots = 0;  // how many it holds
  // Of the first claim in the capture, of the share, or of the tracked lease; zero for others.
  std::chrono::steady_clock::time_point since{};
  source_location where = {};  // of that claim; of a share, if its lease was tracked
  // Not null: slots released on this stream without an event: while it captured, or see claimer.
  // The former return when the pool is next given the stream outside of captures, the latter at the
  // claimer's next release, flush() or end.
  cudaStream_t waits_for = nullptr;
  bool is_lease = false;
};

// A holder in words, for a log: "a lease holds 1 for 412 ms, since the claim at solver.cpp:88".
// Any thread. Throws std::bad_alloc.
[[nodiscard]] ESCROW_API std::string describe(holder const& which);

// All slots are out, no more may be created, and the claim may not wait (any longer); or other
// threads took each slot that became free. The text says which, and names the holders and the
// options that would have helped. A capture in progress stays valid.
class ESCROW_API pool_exhausted : public std::runtime_error, public located_error {
 public:
  using std::runtime_error::runtime_error;
  // `failed`, at the caller's line.
  pool_exhausted(pool_exhausted const& failed, source_location where)
      : std::runtime_error(detail::text_at(where, failed.what())), located_error(where) {}

  [[noreturn]] void throw_at(source_location where) const override;
};

// A pool of resources of type T on one device. claim() gives one to a stream; once released, the
// next claim gets it as soon as the GPU allows, without host synchronization. In any stream
// capture, also an outer caller's, the graph keeps the resource until it, its clones, execs and
// launches are destroyed.
// Thread safety: any thread may call anything concurrently, except constructor, move and
//   destructor. What a thread did to a resource before its release happens before the return of the
//   claim that gets it next; the streams order GPU work.
// Lifetime: the destructor never blocks and may be called with slots out: each resource is
//   destroyed when it returns. A stream may be destroyed at any time after the release on it, but
//   for claimers and pool_options::streams_outlive_pool.
// Capture: claims and releases work in a capture of any mode and in any branch. A graph holds as
//   many slots as are in use concurrently; its edges order successive uses of a slot. Removing
//   nodes or edges between them, or bypassing them with cudaStreamUpdateCaptureDependencies, is the
//   caller's responsibility. No call invalidates a capture, if `make` and T's destructor do not.
// Errors: see claim().
// Example: examples/cublas_handles.cpp.
template <class T>
class resource_pool {
 public:
  // Creates one resource, with the pool's device current. Several threads may call it concurrently.
  // What a T tells by `std::size_t bytes() const` is the size of each: see report_memory().
  // In a capture it runs in Relaxed mode, so it may allocate; but cudaDeviceSynchronize invalidates
  // captures in every mode.
  using make_function = std::function<T()>;
  // Prepares a used resource for its next use, with work on the claiming stream, e.g. a memset.
  // Called within claim(); in a capture for new resources too: the graph may be relaunched.
  using recycle_function = std::function<void(T&, stream_ref)>;
  // Called on the worker before T's destructor, after the GPU work on the resource. Must not throw.
  // If either calls cudaDeviceSynchronize, as the destroy functions of some libraries do, it
  // invalidates captures in every mode.
  using destroy_function = std::function<void(T&)>;

  // Throws cuda_error if `options.device` does not name a device, usage_error if `make` is empty,
  // if T is a pointer, as most handles are, and `destroy` is empty, or if there is a `recycle` with
  // options.host_ordered: see claim_for_host().
  resource_pool(pool_options const& options, make_function make, recycle_function recycle = {},
                destroy_function destroy = {}, source_location where = source_location::current()) {
    pin_this_module();  // the worker calls `destroy` and T's destructor
    auto const functions = std::make_shared<slot_functions<T> const>(
        slot_functions<T>{std::move(make), std::move(recycle), std::move(destroy)});
    functions_ = functions.get();
    functions->require_whole(creating, options.label, where);
    if (options.host_ordered) functions->require_no_recycle(creating, where);
    auto make_one = [functions](size_class const&, void*, std::size_t) {
      return std::make_unique<resource_of<T>>(*functions, functions->make);
    };
    slots_ = detail::called_at(creating, where,
                               [&] { return slot_pool::create(options, std::move(make_one)); });
    if (!functions->recycle) slots_->keep_contents();
  }

  // Internal: of what are no such functions.
  template <class Make, class Recycle = recycle_function, class Destroy = destroy_function>
  resource_pool(
      pool_options const&, Make const&, Recycle const& = {}, Destroy const& = {},
      source_location =
          source_location::current()) requires(!(std::convertible_to<Make, make_function> &&
                                                 std::convertible_to<Recycle, recycle_function> &&
                                                 std::convertible_to<Destroy, destroy_function>)) {
    constexpr bool makes = std::convertible_to<Make, make_function>;
    constexpr bool recycles = std::convertible_to<Recycle, recycle_function>;
    static_assert(makes,
                  "`make` takes nothing, returns a T, as of resource_pool<T>, and can be copied");
    static_assert(!makes || recycles, "`recycle` takes (T&, stream_ref), and can be copied");
    static_assert(!makes || !recycles || std::convertible_to<Destroy, destroy_function>,
                  "`destroy` takes a T&, and can be copied");
  }

  // Claims a resource for work on `stream`, which must be of the pool's device. A programmatically
  // launched kernel must not touch it before it synchronizes with its predecessor. Any thread.
  //   It gets the first of these that exists: the slot released last on its stream, without a wait;
  // one whose work is done; a new one up to the limit; the oldest, with a wait in the stream, also
  // if creating one failed. In a capture: one released in this capture, in dependency order; with
  // options.group, one that other graphs of the group hold; one whose work is done; a new one; one
  // of another branch, with an edge. If there is none, it waits on the host for eager work to end.
  //   Blocks the host for at most options.host_wait_max if all slots are out, in a capture for at
  // most options.capture_wait_max if free ones are busy. Then throws pool_exhausted: leases or
  // graphs hold all slots. Throws usage_error for a stream of another device, a closed pool, an
  // invalidated capture, or the legacy stream while a blocking stream captures; cuda_error;
  // exceptions of `make` and `recycle`. If it throws, it has taken nothing.
  ESCROW_KEEP lease<T> claim(stream_ref stream,
                             source_location where = source_location::current()) {
    return lease<T>(functions_, [&] {
      return claim_slot({"resource_pool::claim", stream, where});
    });
  }

  // The same, for a resource that the host writes or reads at once: no GPU work uses it any more.
  // It is one whose work is done, or a new one; if all are busy, the call blocks the host until one
  // is done, for at most options.capture_wait_max. In a capture no other claim and no other graph
  // gets the resource, and the host's order ends with the first launch: wait for a launch before
  // you write what it reads. Throws usage_error if the pool has a `recycle`, whose work would use
  // the resource beside the host.
  ESCROW_KEEP lease<T> claim_for_host(stream_ref stream,
                                      source_location where = source_location::current()) {
    constexpr char const* call = "resource_pool::claim_for_host";
    return lease<T>([&] {
      static_cast<void>(slot_pool::of(slots_, call, where));  // else there are no functions
      functions_->require_no_recycle(call, where);
      return claim_slot(
          {.call = call, .stream = stream, .where = where, .kind = claim_kind::for_host});
    });
  }

  // The same as claim(), for what must stay after its capture, as a graph's output, or is used
  // eagerly then: no other claim of the capture, and no other graph of its sharing group, captured
  // earlier or later, gets the resource while its graph exists. Outside of captures it is claim().
  ESCROW_KEEP lease<T> claim_kept(stream_ref stream,
                                  source_location where = source_location::current()) {
    return lease<T>(functions_, [&] {
      return claim_slot({.call = "resource_pool::claim_kept",
                         .stream = stream,
                         .where = where,
                         .kind = claim_kind::kept});
    });
  }

  // As claim(), but returns nothing instead of waiting or throwing pool_exhausted.
  ESCROW_KEEP std::optional<lease<T>> try_claim(
      stream_ref stream, source_location where = source_location::current()) {
    return try_claim_as("resource_pool::try_claim", stream, std::chrono::nanoseconds(0), where);
  }

  // The same, after blocking the host for at most `host_wait_max`.
  ESCROW_KEEP std::optional<lease<T>> try_claim_for(
      stream_ref stream, std::chrono::nanoseconds host_wait_max,
      source_location where = source_location::current()) {
    return try_claim_as("resource_pool::try_claim_for", stream, host_wait_max, where);
  }

  // A claimer of this pool for `stream`, also one that is being captured. Make one for each thread
  // and its stream, and keep it as long as the stream: making and destroying one takes locks of the
  // pool. A stream may have several. Throws as claim(). Any thread.
  ESCROW_KEEP claimer<T> on(stream_ref stream, source_location where = source_location::current()) {
    constexpr char const* call = "resource_pool::on";
    return {claimer_slots(call, slot_pool::of(slots_, call, where), stream, where), *functions_};
  }

  // Refuses claims from now on, destroys free slots, and waits at most `timeout` for the others,
  // for those of launches by graph_exec, too; see also pool_options::held_until_closed. Returns the
  // holders of what is left; empty: every slot returned. Any thread.
  [[nodiscard]] std::vector<holder> close_for(std::chrono::nanoseconds timeout,
                                              source_location where = source_location::current()) {
    return slot_pool::of(slots_, "resource_pool::close_for", where).close_for(timeout);
  }

  // What holds slots now. Any thread. Throws std::bad_alloc.
  [[nodiscard]] std::vector<holder> holders(
      source_location where = source_location::current()) const {
    return slot_pool::of(slots_, "resource_pool::holders", where).holders();
  }
  // The pool, its statistics and holders in words, for a log when a shutdown waits, or for a
  // debugger. Any thread; takes short locks. Throws std::bad_alloc.
  //
  //     pool "blocks" on device 0, slots_max 4: {"slots": 3, "leased": 1, "idle": 1, ...}
  //       capture 12 holds 1 for 5301 ms, since the claim at solver.cpp:88
  //       a lease holds 1 for 412 ms, since the claim at halo.cpp:17
  [[nodiscard]] std::string describe(source_location where = source_location::current()) const {
    return slot_pool::of(slots_, "resource_pool::describe", where).describe();
  }

  // Of a pool that was moved from: zeros, and device -1.
  [[nodiscard]] pool_stats stats() const noexcept {
    return slots_ == nullptr ? pool_stats{} : slots_->stats();
  }
  [[nodiscard]] int device() const noexcept { return slots_ == nullptr ? -1 : slots_->device(); }

 private:
  [[nodiscard]] claimed_slot claim_slot(claim_request const& asked) {
    return slot_pool::of(slots_, asked.call, asked.where).claim(asked);
  }

  static constexpr char const* creating = "resource_pool::resource_pool";

  std::optional<lease<T>> try_claim_as(char const* call, stream_ref stream,
                                       std::chrono::nanoseconds host_wait_max,
                                       source_location where) {
    lease<T> leased(functions_, [&] { return claim_slot({call, stream, where, host_wait_max}); });
    return leased ? std::optional(std::move(leased)) : std::nullopt;
  }

  slot_functions<T> const* functions_;  // owned by the slot_pool
  slot_pool::owned slots_;
};

}  // namespace escrow::inline v0_2
