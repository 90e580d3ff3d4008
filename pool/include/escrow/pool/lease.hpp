// The right to use a pool's resource, until its release.
#pragma once

#include <concepts>
#include <type_traits>
#include <utility>

#include "escrow/core/stream.hpp"
#include "escrow/deleter/kernel_argument.hpp"
#include "escrow/detail/slot.hpp"
#include "escrow/version.hpp"

namespace escrow::inline v0_1 {

class scratch_claimer;
class scratch_pool;
class stream_allocator;

template <class T>
class claimer;
template <class T>
class resource_pool;

// The right to use one resource of a pool from claim() to release. Enqueue on the claiming stream,
// or call record_stream().
// Thread safety: one thread at a time. It may move to another thread. While a release runs, no
//   other thread may begin or end a capture of the claiming stream or of one given to
//   record_stream(), since CUDA's driver crashes then in any call with it. On a deleter's worker,
//   where you cannot prevent that, a release calls nothing with a stream.
// Lifetime: the destructor releases on the claiming stream. That stream, and those given to
//   record_stream(), must be alive then, and may be destroyed right afterwards; not the stream of a
//   claimer, or with pool_options::streams_outlive_pool. May outlive its pool. Moved-from and
//   released leases are empty.
//   In a destructor that a deleter calls, a lease of a capture is left to its graph if it was
//   recorded on no stream after the capture. So announce eager use by record_stream(), on the
//   claiming stream, too. Any other lease has its record deferred: keep its stream, and the pool,
//   until that is made.
// Capture: a lease claimed in a capture belongs to the graph: the graph keeps the resource, and the
//   release lets later claims of the same capture use it, in dependency order. The lease may be
//   used eagerly after its capture, and released at any time. Resuming the graph with
//   cudaStreamBeginCaptureToGraph starts a different capture (CUDA reuses the id); its work is not
//   ordered after the lease's.
//   Deferred record: a release cannot record on a stream while that stream captures something else
//   or its capture is invalidated. Nor can it on the legacy stream while a blocking stream
//   captures, on cudaStreamPerThread of another thread, on a deleter's worker, or if CUDA refuses.
//   The slot then waits until its pool is next given that stream outside of captures, by any call,
//   and records there. A graph that is captured on the stream meanwhile holds the slot, too.
//   pool_stats::deferred counts such slots and close_for() lists them; those left at the pool's end
//   are leaked and counted (deleter_stats::leaked).
// Errors: usage_error for an empty lease or a wrong stream: nothing has changed. cuda_error if CUDA
//   refuses: the lease is empty and its record deferred, or it still has the slot. Errors in the
//   destructor are reported to the deleter's on_error.
// Example: examples/cublas_handles.cpp.
template <class T>
class lease {
 public:
  lease(lease&& other) noexcept : claimed_(other.claimed_) { other.claimed_.what = nullptr; }
  // Releases the old slot, as the destructor does, and leaves `other` empty.
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
    static_cast<void>(slot_pool::require_slot("lease::get", claimed_));
    return static_cast<resource_of<T>&>(*claimed_.resource).value;
  }
  [[nodiscard]] T& operator*() const { return get(); }
  [[nodiscard]] T* operator->() const { return &get(); }

  // Ends the lease after the work on the claiming stream so far. Does not block. For
  // cudaStreamPerThread, only on the thread that claimed.
  void release() { slot_pool::release(claimed_); }
  // The same, with the last use on another stream, which must be ordered after all earlier uses.
  void release(stream_ref stream) { slot_pool::release(claimed_, stream); }

  // The resource is used on `stream` too, of any device, until the release: it is handed out again
  // only after the work on `stream` at the release. In a capture, `stream` must be in the same
  // capture; after it, outside of captures. After cudaStreamPerThread, release on the same thread.
  void record_stream(stream_ref stream) { slot_pool::record_stream(claimed_, stream); }

  // For launch(): record_stream(), unless the lease knows the stream. A capture must always be the
  // lease's own, also on a known stream.
  void before_launch(stream_ref stream) { slot_pool::before_launch(claimed_, stream); }

  // For nodes of graphs built by hand: the slot is not handed out until this share is destroyed,
  // too. The caller keeps the lease and orders the graph's launches with other work on the
  // resource. A share kept as a node's argument ends with the last graph, exec and launch that uses
  // it, even while the worker is busy. Throws usage_error if the lease is empty, std::bad_alloc.
  [[nodiscard]] slot_share share_with_node() { return slot_pool::share_with_node(claimed_); }

  // False once released or moved from.
  [[nodiscard]] explicit operator bool() const noexcept { return claimed_.what != nullptr; }

 private:
  friend class claimer<T>;
  friend class resource_pool<T>;
  friend class scratch_claimer;
  friend class scratch_pool;
  friend class stream_allocator;

  // Of what `claim()` returns, which is not copied.
  template <class Claim>
  requires std::same_as<std::invoke_result_t<Claim>, claimed_slot>
  explicit lease(Claim claim) : claimed_(claim()) {}

  // For a resource that an earlier lease or launch may have used.
  void recycle(slot_functions<T> const& functions) const {
    if (claimed_.what == nullptr || !functions.recycle || !claimed_.was_used) return;
    functions.recycle(get(), stream_ref(claimed_.on.handle));  // on failure the lease releases
  }

  claimed_slot claimed_;
};

// The kernel receives the resource's value. The caller keeps the lease, which records the stream; a
// node keeps a share of the slot.
template <class T>
requires owning_argument<T>
struct kernel_argument_traits<lease<T>> {
  static auto device_value(lease<T> const& claimed) {
    return kernel_argument_traits<T>::device_value(claimed.get());
  }
  static void before_launch(lease<T>& claimed, stream_ref stream) { claimed.before_launch(stream); }
  static slot_share owner_for_node(lease<T>& claimed) { return claimed.share_with_node(); }
};

}  // namespace escrow::inline v0_1
