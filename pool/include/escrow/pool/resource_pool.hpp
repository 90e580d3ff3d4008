// Resources that are claimed for a stream and released, captured or not.
#pragma once

#include <chrono>
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
#include "escrow/detail/reclaimable.hpp"
#include "escrow/detail/slot.hpp"

namespace escrow {

// The options of a pool, copied by it. The deleter is used only while the pool is made; what the
// pool needs of it outlives it.
struct pool_options {
  // The most resources that the pool makes. A graph holds those that it uses until it, its clones,
  // execs and launches are destroyed.
  std::size_t slots_max = 64;
  // The device that the resources belong to; -1 means the device current when the pool is made.
  int device = -1;
  // How long claim() may block the host when all resources are out. Zero: it throws at once.
  std::chrono::nanoseconds host_wait_max{0};
  // How long claim() in a capture may block the host for the eager work that uses all resources
  // that are not out: a capture cannot wait for it in its stream.
  std::chrono::nanoseconds capture_wait_max = std::chrono::seconds(10);
  // The pool's name in errors and reports.
  std::string label = "pool";
  // Whose worker recycles and destroys; null means deleter::global().
  escrow::deleter* deleter = nullptr;
};

// Counts, read one by one while others go on. Claims that find their stream's own slot, the common
// ones, are not counted, because counting would cost more than it tells.
struct pool_stats {
  std::size_t slots = 0;           // resources that exist, but for those that were leaked
  std::size_t in_graphs = 0;       // of them, held by graphs
  std::size_t deferred = 0;        // of them, released, but not yet recorded: see lease
  std::uint64_t grown = 0;         // resources made so far
  std::uint64_t stream_waits = 0;  // claims that made their stream wait for another
  std::uint64_t host_waits = 0;    // claims that blocked the host
  std::uint64_t edges_added = 0;   // claims in a capture that ordered one branch after another
};

// One holder of slots of a pool that is being closed: a graph, with its clones and execs; the
// leases that are out; or a stream that a record is missing on.
struct holder {
  // The id under which the graph was captured; 0: none, or a node of a graph built by hand.
  std::uint64_t capture_id = 0;
  std::string label;                              // the pool's label
  std::size_t slots = 0;                          // how many it holds
  std::chrono::steady_clock::time_point since{};  // of its first claim or share; zero for leases
  // The line of its first claim, in a capture; empty for others.
  source_location where = {};
  // Not null: these slots were released while this stream captured. They come back when the pool is
  // given the stream again outside of captures.
  cudaStream_t waits_for = nullptr;
};

// All slots of the pool are out, no more may be made, and the claim may not wait (any longer). The
// text names the holders and what to do. A capture in progress stays valid.
class pool_exhausted : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

template <class T>
class resource_pool;

// The right to enqueue work that uses one resource of a pool, from claim() to release. Enqueue on
// the claiming stream, or tell record_stream().
// Thread safety: one thread at a time. It may move to another thread.
// Lifetime: releases at its end on the stream it was claimed on. That stream, and those given to
//   record_stream(), must be alive then, and may be destroyed right afterwards. May outlive its
//   pool. Moved-from and released leases are empty.
// Capture: a lease claimed in a capture belongs to the graph: the resource stays with it, and the
//   release lets later claims of the same capture have it, in dependency order. It may be used
//   eagerly after its capture, and may end at any time. A capture that is begun on the graph again
//   (cudaStreamBeginCaptureToGraph) is another one, although CUDA gives it the same id, and is in
//   no order with what the lease was used for.
//     Deferred record: what a stream has at the release cannot be recorded while that stream
//   captures something else, while its capture is invalidated, for the legacy stream while a
//   blocking stream captures, on another thread than that of cudaStreamPerThread, or if CUDA
//   refuses. Then the slot, which a graph that is captured meanwhile holds, too, waits until its
//   pool is next given that stream outside of captures, by any call, and records there.
//   pool_stats::deferred counts such slots, close_for() names them, and those that are left at the
//   pool's end are leaked and counted (deleter_stats::leaked).
// Errors: usage_error for an empty lease or a wrong stream, and nothing has changed. cuda_error if
//   CUDA refuses: the lease is empty then and its record deferred, or it still has the slot. Errors
//   at the end of a lease go to the deleter's on_error.
template <class T>
class lease {
 public:
  lease(lease&& other) noexcept : claimed_(std::exchange(other.claimed_, {})) {}
  // Releases what was held, as the destructor does, and leaves `other` empty.
  lease& operator=(lease&& other) noexcept {
    lease taken(std::move(other));
    std::swap(claimed_, taken.claimed_);
    return *this;
  }
  ~lease() {
    if (claimed_.what != nullptr) slot_pool::release_at_end(claimed_);
  }

  // The resource. Throws usage_error if the lease is empty.
  [[nodiscard]] T& get() const {
    return static_cast<slot_of<T>&>(slot_pool::require_slot("lease::get", claimed_)).resource();
  }
  [[nodiscard]] T& operator*() const { return get(); }
  [[nodiscard]] T* operator->() const { return &get(); }

  // Ends the lease: work enqueued on the claiming stream so far is the last that uses the resource.
  // Does not block. For cudaStreamPerThread, only on the thread that claimed.
  void release() { slot_pool::release(claimed_); }
  // The same, if the last use is on another stream, which is ordered after the end of all earlier
  // ones.
  void release(stream_ref stream) { slot_pool::release(claimed_, stream); }

  // The resource is used on `stream` too, of any device, until the release: it is handed out again
  // only after the work that `stream` has by then. In a capture, `stream` must be of the same
  // capture. After cudaStreamPerThread, release on the same thread.
  void record_stream(stream_ref stream) { slot_pool::record_stream(claimed_, stream); }

  // For launch(): record_stream(), unless the stream is known to the lease. In a capture, that has
  // to be the lease's own, also on a stream that it knows.
  void before_launch(stream_ref stream) { slot_pool::before_launch(claimed_, stream); }

  // For nodes of graphs built by hand: the slot is not handed out until the share is destroyed,
  // too. The lease stays with the caller, who orders the graph's launches with other work
  // on the resource. A share that a node keeps as an argument ends with the last graph, exec and
  // launch that uses it, even while the worker is busy. Throws usage_error if the lease is empty,
  // std::bad_alloc.
  [[nodiscard]] slot_share share_with_node() { return slot_pool::share_with_node(claimed_); }

  // False once released or moved from.
  [[nodiscard]] explicit operator bool() const noexcept { return claimed_.what != nullptr; }

 private:
  friend class resource_pool<T>;

  explicit lease(claimed_slot const& claimed) noexcept : claimed_(claimed) {}
  // Whether the resource may have been used before, by an earlier lease or an earlier launch.
  [[nodiscard]] bool may_have_been_used() const noexcept { return claimed_.what->was_used_; }

  claimed_slot claimed_;
};

// A kernel gets what it gets for the resource. The lease stays with the caller, and is told of the
// stream; a node keeps a share of its slot.
template <class T>
requires owning_argument<T>
struct kernel_argument_traits<lease<T>> {
  static auto device_value(lease<T> const& claimed) {
    return kernel_argument_traits<T>::device_value(claimed.get());
  }
  static void before_launch(lease<T>& claimed, stream_ref stream) { claimed.before_launch(stream); }
  static slot_share owner_for_node(lease<T>& claimed) { return claimed.share_with_node(); }
};

// A pool of resources of type T on one device. claim() gives one to a stream; once released, it
// goes to the next claim as soon as the GPU allows, with no host synchronisation. In a stream
// capture, also one that the caller of the caller started, the resource stays with the captured
// graph until the graph, its clones, execs and launches are destroyed.
//   A claim gets: the slot released last on its stream, without a wait; one whose work is done; a
// new one up to the limit; else the oldest, with a wait in the stream, also if making one failed.
// In a capture: one released in this capture, in dependency order; one whose work is done; a new
// one; one of another branch, with an edge; else it waits on the host for eager work to end.
// Thread safety: any thread may call anything, also at the same time; not the constructor, the move
//   and the destructor. What a thread did to a resource before its release happens before the
//   return of the claim that gets it next; work on the GPU is ordered by the streams. What a kernel
//   does before it synchronizes with the one in front of it (programmatic dependent launch) is not:
//   it has to leave claimed resources alone until then.
// Lifetime: the destructor never blocks and may be called with slots out: each resource is
//   destroyed when it comes back. Streams may be destroyed at any time after the release on them.
// Capture: claims and releases in a capture of any mode, in any of its branches. A graph holds as
//   many slots as are in use at its widest moment; successive uses of a slot are ordered by the
//   graph's edges. Removing nodes or edges between them, or bypassing them with
//   cudaStreamUpdateCaptureDependencies, is the caller's responsibility. No call harms a capture,
//   of this thread or of another.
// Errors: usage_error for a stream of another device, a closed pool, an invalidated capture, or a
//   claim on the legacy stream while a blocking stream captures; pool_exhausted: leases or graphs
//   hold all slots; cuda_error; what `make` and `recycle` throw. A claim that throws has taken
//   nothing.
template <class T>
class resource_pool {
 public:
  // Makes one resource, with the pool's device current. May be called by several threads at a time.
  // In a capture it is called in Relaxed mode, so it may allocate.
  using make_function = std::function<T()>;
  // Makes a used resource good for its next use, by work enqueued on the claiming stream, e.g. a
  // memset. Called by claim() before it returns; in a capture for new resources too, since the
  // graph will be launched again.
  using recycle_function = std::function<void(T&, stream_ref)>;
  // Called on the worker, before T's destructor, when the GPU is done with the resource. Must not
  // throw.
  using destroy_function = std::function<void(T&)>;

  // Throws cuda_error if `options.device` does not name a device.
  resource_pool(pool_options const& options, make_function make, recycle_function recycle = {},
                destroy_function destroy = {}) {
    auto const functions = std::make_shared<slot_functions<T> const>(
        slot_functions<T>{std::move(make), std::move(recycle), std::move(destroy)});
    functions_ = functions.get();
    slots_.reset(new slot_pool(options, [functions](slot_pool& pool) -> slot* {
      return new slot_of<T>(pool, *functions);
    }));
  }

  // Claims a resource for work on `stream`, which must be of the pool's device. Does not block the
  // host, but up to options.host_wait_max when all slots are out, and up to
  // options.capture_wait_max in a capture; then throws pool_exhausted. Any thread.
  [[nodiscard]] lease<T> claim(stream_ref stream,
                               source_location where = source_location::current()) {
    return claim_as("resource_pool::claim", stream, where);
  }

  // The same, but returns nothing instead of waiting or throwing pool_exhausted.
  [[nodiscard]] std::optional<lease<T>> try_claim(
      stream_ref stream, source_location where = source_location::current()) {
    return try_claim_as("resource_pool::try_claim", stream, std::chrono::nanoseconds(0), where);
  }

  // The same, after blocking the host for `host_wait_max` at most.
  [[nodiscard]] std::optional<lease<T>> try_claim_for(
      stream_ref stream, std::chrono::nanoseconds host_wait_max,
      source_location where = source_location::current()) {
    return try_claim_as("resource_pool::try_claim_for", stream, host_wait_max, where);
  }

  // Refuses claims from now on, destroys what is free, and waits `timeout` at most for the rest.
  // Returns the holders of what is left: none means that every slot came back. Any thread.
  [[nodiscard]] std::vector<holder> close_for(std::chrono::nanoseconds timeout) {
    return slots_->close_for(timeout);
  }

  [[nodiscard]] pool_stats stats() const noexcept { return slots_->stats(); }
  [[nodiscard]] int device() const noexcept { return slots_->device(); }

 private:
  friend class scratch_pool;

  struct close_and_leave {
    void operator()(slot_pool* slots) const noexcept { slots->close_and_leave(); }
  };

  // claim() and try_claim_for(), for errors of the public function `call`.
  lease<T> claim_as(char const* call, stream_ref stream, source_location where) {
    return recycled(slots_->claim(call, stream, where), stream);
  }
  std::optional<lease<T>> try_claim_as(char const* call, stream_ref stream,
                                       std::chrono::nanoseconds host_wait_max,
                                       source_location where) {
    claimed_slot const claimed = slots_->try_claim(call, stream, host_wait_max, where);
    if (claimed.what == nullptr) return std::nullopt;
    return recycled(claimed, stream);
  }

  lease<T> recycled(claimed_slot const& claimed, stream_ref stream) {
    lease<T> leased(claimed);
    if (functions_->recycle && leased.may_have_been_used()) {
      functions_->recycle(leased.get(), stream);  // if it throws, the lease releases
    }
    return leased;
  }

  slot_functions<T> const* functions_;  // owned by the slot_pool
  std::unique_ptr<slot_pool, close_and_leave> slots_;
};

}  // namespace escrow
