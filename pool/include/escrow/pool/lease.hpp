// A claim on a pooled resource.
#pragma once

#include <utility>

#include "escrow/core/stream.hpp"
#include "escrow/deleter/kernel_argument.hpp"
#include "escrow/detail/reclaimable.hpp"
#include "escrow/pool/slot_lease.hpp"
#include "escrow/pool/typed_slot.hpp"

namespace escrow {

template <class T>
class resource_pool;

// What: the right to enqueue work that uses one resource of a pool, from claim() to release.
//   Enqueue on the claiming stream, or tell record_stream().
// Thread safety: a value; one thread at a time. It may move to another thread.
// Memory ordering: none of its own; see resource_pool.
// Lifetime: releases at its end on the stream it was claimed on, which must be alive then; on the
//   legacy stream also while a blocking stream captures. May outlive its pool. Moved-from and
//   released leases are empty.
// Capture: a lease claimed in a capture belongs to the graph: the resource stays with it, and the
//   release lets later claims of the same capture have it, in dependency order. Release it in the
//   same capture: one that is begun on the graph again (cudaStreamBeginCaptureToGraph) is another,
//   although CUDA gives it the same id, and is in no order with what the lease was used for.
// Errors: usage_error for an empty lease or a wrong stream, and nothing has changed, but for an
//   eager lease that is released on a capturing stream: its slot goes to the graph and then to
//   quarantine. cuda_error if CUDA refuses: the slot is quarantined if its event could not be
//   recorded, else the lease still has it. Errors that cost a slot, and those of the destructor, go
//   to the deleter's on_error.
template <class T>
class lease : private slot_lease {
 public:
  lease(lease&&) noexcept = default;
  lease& operator=(lease&&) noexcept = default;

  // The resource. Throws usage_error if the lease is empty.
  [[nodiscard]] T& get() const;
  [[nodiscard]] T& operator*() const { return get(); }
  [[nodiscard]] T* operator->() const { return &get(); }

  // Ends the lease: work enqueued on the claiming stream so far is the last that uses the resource.
  // Does not block. For cudaStreamPerThread, only on the thread that claimed.
  using slot_lease::release;  // void release();
  // The same, if the last use is on another stream, which is ordered after the end of all earlier
  // ones.
  //                             void release(stream_ref stream);

  // The resource is used on `stream` too, of any device, until the release: it is handed out again
  // only after the work that `stream` has by then. In a capture, `stream` must be of the same
  // capture. After cudaStreamPerThread, release on the same thread.
  using slot_lease::record_stream;  // void record_stream(stream_ref stream);

  // For launch(): record_stream(), unless the stream is known to the lease. In a capture, that has
  // to be the lease's own, also on a stream that it knows.
  using slot_lease::before_launch;  // void before_launch(stream_ref stream);

  // For nodes of graphs that are built by hand: until the share is gone too, the slot is handed out
  // to nobody. The lease stays with the caller, who orders the graph's launches with other work on
  // the resource. A share that a node keeps as an argument ends with the last graph, exec and
  // launch that uses it, even while the worker is busy.
  using slot_lease::share_with_node;  // slot_share share_with_node();

  // False once released or moved from.
  using slot_lease::operator bool;

 private:
  friend class resource_pool<T>;

  explicit lease(slot_lease&& claimed) noexcept : slot_lease(std::move(claimed)) {}
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

template <class T>
T& lease<T>::get() const {
  return static_cast<typed_slot<T>&>(held("lease::get")).resource();
}

}  // namespace escrow
