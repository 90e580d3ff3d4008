// Resources that are claimed for a stream and released, captured or not.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "escrow/core/error.hpp"
#include "escrow/core/stream.hpp"
#include "escrow/pool/holder.hpp"
#include "escrow/pool/lease.hpp"
#include "escrow/pool/pool_options.hpp"
#include "escrow/pool/pool_stats.hpp"
#include "escrow/pool/slot_pool.hpp"
#include "escrow/pool/typed_slot.hpp"

namespace escrow {

// What: a pool of resources of type T on one device. claim() gives one to a stream; once released,
//   it goes to the next claim as soon as the GPU allows, with no host synchronisation. In a stream
//   capture, also one that the caller of the caller started, the resource stays with the captured
//   graph until the graph, its clones, execs and launches are gone.
// Thread safety: any thread may call anything, also at the same time; not the constructor, the move
//   and the destructor.
// Memory ordering: what a thread did to a resource before its release happens before the return of
//   the claim that gets it next; work on the GPU is ordered by the streams. What a kernel does
//   before it synchronizes with the one in front of it (programmatic dependent launch) is not: it
//   has to leave claimed resources alone until then.
// Lifetime: the destructor never blocks and may be called with slots out: each resource is
//   destroyed when it comes back. Streams may be destroyed at any time after the release on them.
// Capture: claims and releases in a capture of any mode, in any of its branches; a graph holds as
//   many slots as its widest moment, two uses of one in the order of the graph's edges: who takes
//   nodes or edges between them away, or lets a stream go on by hand without waiting for the end of
//   its own work (cudaStreamUpdateCaptureDependencies), answers for that. No call harms a capture,
//   of this thread or of another.
// Errors: usage_error for a stream of another device, a closed pool, an invalidated capture or the
//   legacy stream while a blocking stream captures; pool_exhausted; cuda_error; what `make` and
//   `recycle` throw. A claim that throws has taken nothing; if a wait in the stream failed, a slot
//   is quarantined.
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
                destroy_function destroy = {})
      : functions_(new resource_functions<T>) {
    std::unique_ptr<resource_functions<T>> functions(functions_);
    functions->make_resource = std::move(make);
    functions->recycle = std::move(recycle);
    functions->destroy = std::move(destroy);
    slots_.reset(new slot_pool(options, std::move(functions)));
  }

  // Claims a resource for work on `stream`, which must be of the pool's device. Does not block the
  // host, but up to options.host_wait_max when all slots are out; then throws pool_exhausted. Any
  // thread.
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
  // Returns who still holds what: empty means that everything has come back. Any thread.
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
    std::optional<slot_lease> claimed = slots_->claim(call, stream, host_wait_max, where);
    if (!claimed) return std::nullopt;
    return recycled(std::move(*claimed), stream);
  }

  lease<T> recycled(slot_lease&& claimed, stream_ref stream) {
    lease<T> leased(std::move(claimed));
    if (functions_->recycle && leased.may_have_been_used()) {
      functions_->recycle(leased.get(), stream);  // if it throws, the lease releases
    }
    return leased;
  }

  resource_functions<T>* functions_;  // owned by the slot_pool
  std::unique_ptr<slot_pool, close_and_leave> slots_;
};

}  // namespace escrow
